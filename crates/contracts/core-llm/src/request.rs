//! What is asked of a language model.

use crate::{CancelFlag, Error, Message, Result};

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
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.7, top_p: 0.95, top_k: 0, min_p: 0.0, repetition_penalty: 1.0 }
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
    /// The conversation so far.
    pub messages: Vec<Message>,
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
    /// JSON descriptions of tools that the model may call.
    pub tools: Vec<serde_json::Value>,
    /// Whether to think first.
    pub thinking: Thinking,
    /// Stops the work when set.
    pub cancel: CancelFlag,
}

impl TextLlmRequest {
    /// A request with defaults.
    pub fn new(messages: Vec<Message>, max_new_tokens: usize) -> Self {
        Self {
            messages,
            max_new_tokens,
            sampling: SamplingParams::default(),
            seed: 0,
            stop: Vec::new(),
            constraint: None,
            tools: Vec::new(),
            thinking: Thinking::default(),
            cancel: CancelFlag::new(),
        }
    }

    /// Refuses values that no model can use, by field.
    ///
    /// # Errors
    /// The first such value.
    pub fn check(&self) -> Result<()> {
        let s = &self.sampling;
        if self.messages.is_empty() {
            return Err(Error::invalid("messages", "there must be at least one message"));
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
            ("stop", self.stop.iter().all(|text| !text.is_empty()), "must not hold an empty text"),
        ] {
            if !ok {
                return Err(Error::invalid(field, rule));
            }
        }
        Ok(())
    }
}
