//! What is asked of a language model.

use crate::{CancelFlag, Error, Message, Result};

/// Likeliest tokens that can be asked for beside each token.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps the likeliest tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps this many tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps tokens of at least this fraction of the likeliest one's probability; 0 keeps all.
    pub min_p: f32,
    /// Divides (multiplies, if negative) the logits of tokens seen before (Keskar et al. 2019); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that the answer has already.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens as often as the answer has them already.
    pub frequency_penalty: f32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_p: 0.95,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

impl SamplingParams {
    /// Always the likeliest token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

/// What the text must match.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// Any JSON document.
    Json,
    /// A document of this JSON schema.
    JsonSchema(serde_json::Value),
    /// A regular expression.
    Regex(String),
    /// A context-free grammar in Lark syntax.
    Grammar(String),
}

/// Whether tools are called.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// None is, and the model isn't told of them.
    None,
    /// At least one is.
    Required,
    /// This one is.
    Named(String),
}

/// Whether a model that can think before it speaks should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Thinking {
    /// As the model's template has it.
    #[default]
    Auto,
    /// Yes.
    Enabled,
    /// No.
    Disabled,
}

/// A request to a language model.
#[derive(Debug, Clone)]
pub struct TextLlmRequest {
    /// The conversation so far; empty if there is a `prompt`.
    pub messages: Vec<Message>,
    /// A text to continue as it stands, without a chat template.
    pub prompt: Option<String>,
    /// Longest answer in tokens.
    pub max_new_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Seed of the choice; equal requests with equal seeds give equal texts.
    pub seed: u64,
    /// The answer ends before the first of these texts. They aren't looked for in what the model thinks.
    pub stop: Vec<String>,
    /// What the answer must match.
    pub constraint: Option<Constraint>,
    /// Tools that the model may call: objects `{"type": "function", "function": {name, description?, parameters?}}`, whose
    /// parameters are a JSON schema.
    pub tools: Vec<serde_json::Value>,
    /// Whether it does.
    pub tool_choice: ToolChoice,
    /// Gives the probability of every token, and of that many of the likeliest beside it.
    pub logprobs: Option<usize>,
    /// Whether to think first.
    pub thinking: Thinking,
    /// Stops the work when set.
    pub cancel: CancelFlag,
}

impl TextLlmRequest {
    /// For [`Self::max_new_tokens`]: until the model's context is full.
    pub const AS_MANY_AS_FIT: usize = usize::MAX;

    /// A request with defaults.
    pub fn new(messages: Vec<Message>, max_new_tokens: usize) -> Self {
        Self {
            messages,
            prompt: None,
            max_new_tokens,
            sampling: SamplingParams::default(),
            seed: 0,
            stop: Vec::new(),
            constraint: None,
            tools: Vec::new(),
            tool_choice: ToolChoice::default(),
            logprobs: None,
            thinking: Thinking::default(),
            cancel: CancelFlag::new(),
        }
    }

    /// A request to continue a text.
    pub fn continuing(prompt: impl Into<String>, max_new_tokens: usize) -> Self {
        Self { prompt: Some(prompt.into()), ..Self::new(Vec::new(), max_new_tokens) }
    }

    /// The tools that the model is told of.
    pub fn offered_tools(&self) -> &[serde_json::Value] {
        if self.tool_choice == ToolChoice::None { &[] } else { &self.tools }
    }

    /// Refuses values that no model can use, by field.
    ///
    /// # Errors
    /// The first such value.
    pub fn check(&self) -> Result<()> {
        let s = &self.sampling;
        match &self.prompt {
            None if self.messages.is_empty() => {
                return Err(Error::invalid("messages", "there must be at least one message"));
            }
            Some(_) if !self.messages.is_empty() || !self.tools.is_empty() => {
                return Err(Error::invalid("prompt", "a text to continue takes neither messages nor tools"));
            }
            Some(text) if text.is_empty() => return Err(Error::invalid("prompt", "there must be a text to continue")),
            _ => {}
        }
        if self.max_new_tokens == 0 {
            return Err(Error::invalid("max_new_tokens", "must be at least 1"));
        }
        let within = |value: f32, low: f32, high: f32| value.is_finite() && (low..=high).contains(&value);
        for (field, ok, rule) in [
            ("temperature", within(s.temperature, 0.0, 100.0), "must be from 0 to 100"),
            ("top_p", within(s.top_p, 0.0, 1.0) && s.top_p > 0.0, "must be above 0 and at most 1"),
            ("min_p", within(s.min_p, 0.0, 1.0), "must be from 0 to 1"),
            ("repetition_penalty", within(s.repetition_penalty, 0.01, 100.0), "must be from 0.01 to 100"),
            ("presence_penalty", within(s.presence_penalty, -2.0, 2.0), "must be from -2 to 2"),
            ("frequency_penalty", within(s.frequency_penalty, -2.0, 2.0), "must be from -2 to 2"),
            (
                "logprobs",
                self.logprobs.is_none_or(|top| top <= MAX_TOP_LOGPROBS),
                "at most 20 alternatives can be given",
            ),
            ("stop", self.stop.iter().all(|text| !text.is_empty()), "must not hold an empty text"),
        ] {
            if !ok {
                return Err(Error::invalid(field, rule));
            }
        }
        crate::tools::check(&self.tools, &self.tool_choice)
    }
}
