//! What comes back, piece by piece and as a whole.

use crate::ToolCall;
use serde::{Deserialize, Serialize};

/// Where a piece of text belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Channel {
    /// The answer.
    Content,
    /// What the model thinks before it answers.
    Thinking,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it, or a stop text came.
    Stop,
    /// It reached the longest length asked for. A text that was to match a constraint is cut off within it then: it is
    /// the beginning of one that matches.
    Length,
    /// The model wants tools called.
    ToolCalls,
}

/// Tokens of a request and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt, template included.
    pub prompt_tokens: usize,
    /// Tokens made.
    pub completion_tokens: usize,
}

/// A token that was chosen, and how likely the model found it: before temperature, penalties and filters.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenChoice,
    /// The likeliest tokens, likeliest first; as many as were asked for.
    pub top: Vec<TokenChoice>,
}

/// A token with the logarithm of its probability.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenChoice {
    /// Its id.
    pub id: u32,
    /// Its text alone. A part of a character is the replacement character.
    pub text: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// A piece of a running answer. Text arrives as whole characters, and nothing of a stop
/// text ever does on the channel of the answer.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// More text.
    Token {
        /// The text; never empty.
        text: String,
        /// Where it belongs.
        channel: Channel,
        /// The tokens that the text came with, if they were asked for: the text of a token may come with a later one's.
        logprobs: Vec<TokenLogprob>,
    },
    /// A call that the model wants made, whole.
    ToolCall(ToolCall),
    /// The end.
    Done {
        /// Why it ended.
        finish_reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct TextLlmOutput {
    /// The answer.
    pub text: String,
    /// What the model thought, if it did.
    pub thinking: Option<String>,
    /// Calls that the model wants made.
    pub tool_calls: Vec<ToolCall>,
    /// The tokens of the answer and of the thought, if they were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it took.
    pub usage: Usage,
}
