//! Messages of a conversation.

use crate::Image;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Who speaks.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageRole {
    System,
    User,
    Assistant,
    Tool,
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum ContentPart {
    /// Text.
    Text(String),
    /// A picture.
    Image(Arc<Image>),
    /// The frames of a clip.
    Video(Vec<Arc<Image>>),
}

/// A call that the model wants made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Id that the answer refers to.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// Arguments, a JSON object.
    pub arguments: serde_json::Value,
}

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: MessageRole,
    /// What is said, part by part.
    pub content: Vec<ContentPart>,
    /// What the assistant thought before it spoke.
    pub thinking: Option<String>,
    /// Calls that the assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// For a tool's answer: the call that it answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message of one text.
    pub fn new(role: MessageRole, text: impl Into<String>) -> Self {
        let content = vec![ContentPart::Text(text.into())];
        Self { role, content, thinking: None, tool_calls: Vec::new(), tool_call_id: None }
    }

    /// Instructions.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new(MessageRole::System, text)
    }

    /// What the user says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new(MessageRole::User, text)
    }

    /// What the assistant said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new(MessageRole::Assistant, text)
    }

    /// All text parts, one after another.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|part| match part {
            ContentPart::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Whether every part is text.
    pub fn is_text(&self) -> bool {
        self.content.iter().all(|part| matches!(part, ContentPart::Text(_)))
    }
}
