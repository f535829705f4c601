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
    /// It reached the longest length asked for.
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
    },
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
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it took.
    pub usage: Usage,
}
