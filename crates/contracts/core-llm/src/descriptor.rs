//! What a language model is and can.

use crate::{DescriptorProblem, Error, Quant, Result, TextLlmRequest, Thinking};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Whether a model can think before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingSupport {
    /// It can't.
    #[default]
    None,
    /// It can be told whether to.
    Optional,
    /// It always does.
    Always,
}

/// What a provider supports, or a model once it is loaded. A request that asks for anything else is refused by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TextCapabilities {
    /// Pictures in messages.
    pub images: bool,
    /// Clips in messages.
    pub videos: bool,
    /// Tools.
    pub tools: bool,
    /// Constrained decoding.
    pub constraints: bool,
    /// Thinking, on a channel of its own.
    pub thinking: ThinkingSupport,
    /// Quantizations while loading.
    pub quants: Vec<Quant>,
    /// Tokens of a conversation with its answer, at most; known once a model is loaded.
    pub context: Option<usize>,
}

/// A provider of language models as the catalog lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextLlmDescriptor {
    /// Unique id: lower-case letters, digits and `-`.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Tensor backend that runs it.
    pub backend: String,
    /// Model types that it knows, as a `config.json` names them.
    pub model_types: Vec<String>,
    /// What it supports.
    pub capabilities: TextCapabilities,
}

impl TextLlmDescriptor {
    /// The conformance sweep: id, name and backend well-formed, lists without repeats.
    ///
    /// # Errors
    /// The first problem.
    pub fn check(&self) -> Result<(), DescriptorProblem> {
        let plain = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        let quants: Vec<String> = self.capabilities.quants.iter().map(|q| format!("{q:?}")).collect();
        let repeats = |list: &[String]| list.iter().collect::<BTreeSet<_>>().len() != list.len();
        let problem = if !plain(&self.id) {
            "the id must be lower-case letters, digits and '-'"
        } else if self.name.trim().is_empty() || self.name.trim() != self.name {
            "the name must not be empty or padded"
        } else if !plain(&self.backend) {
            "the backend is not a name"
        } else if self.model_types.is_empty() || self.model_types.iter().any(String::is_empty) {
            "it must know at least one model type, each with a name"
        } else if repeats(&self.model_types) || repeats(&quants) {
            "a list repeats an entry"
        } else {
            return Ok(());
        };
        Err(DescriptorProblem { id: self.id.clone(), problem: problem.to_owned() })
    }

    /// Refuses values that no model can use, and whatever the capabilities don't list.
    ///
    /// # Errors
    /// The first such field.
    pub fn validate(&self, request: &TextLlmRequest) -> Result<()> {
        request.check()?;
        let c = &self.capabilities;
        let part =
            |matches: fn(&crate::ContentPart) -> bool| request.messages.iter().any(|m| m.content.iter().any(matches));
        let images = part(|p| matches!(p, crate::ContentPart::Image(_)));
        let videos = part(|p| matches!(p, crate::ContentPart::Video(_)));
        let calls = request.messages.iter().any(|m| !m.tool_calls.is_empty() || m.tool_call_id.is_some());
        for (field, asked, supported) in [
            ("messages", images, c.images),
            ("messages", videos, c.videos),
            ("tools", !request.tools.is_empty() || calls, c.tools),
            ("constraint", request.constraint.is_some(), c.constraints),
        ] {
            if asked && !supported {
                let what = if field == "messages" { "pictures or clips in messages" } else { field };
                return Err(Error::invalid(field, format!("{} does not support {what}; leave it out", self.id)));
            }
        }
        let refusal = match (request.thinking, c.thinking) {
            (Thinking::Enabled, ThinkingSupport::None) => "this model can't think before it answers; leave it on auto",
            (Thinking::Disabled, ThinkingSupport::Always) => "this model always thinks first; leave it on auto",
            _ => return Ok(()),
        };
        Err(Error::invalid("thinking", refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Constraint, ContentPart, Image, Message, MessageRole};

    fn descriptor() -> TextLlmDescriptor {
        TextLlmDescriptor {
            id: "candle-llama".into(),
            name: "Llama".into(),
            backend: "candle".into(),
            model_types: vec!["llama".into()],
            capabilities: TextCapabilities::default(),
        }
    }

    fn refused_field(change: impl FnOnce(&mut TextLlmRequest)) -> &'static str {
        let mut request = TextLlmRequest::new(vec![Message::user("hello")], 8);
        descriptor().validate(&request).unwrap();
        change(&mut request);
        match descriptor().validate(&request) {
            Err(Error::InvalidRequest { field, .. }) => field,
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let picture = ContentPart::Image(Image::new(1, 1, vec![0; 3]).unwrap().into());
        assert_eq!(refused_field(|r| r.messages[0].content.push(picture)), "messages");
        let tool = serde_json::json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(refused_field(|r| r.tools.push(tool)), "tools");
        assert_eq!(
            refused_field(|r| r
                .messages
                .push(Message { tool_call_id: Some("1".into()), ..Message::new(MessageRole::Tool, "x") })),
            "tools"
        );
        assert_eq!(refused_field(|r| r.constraint = Some(Constraint::Json)), "constraint");
        assert_eq!(refused_field(|r| r.thinking = Thinking::Enabled), "thinking");
        let mut always = descriptor();
        always.capabilities.thinking = ThinkingSupport::Always;
        let mut request = TextLlmRequest::new(vec![Message::user("hello")], 8);
        request.thinking = Thinking::Disabled;
        assert!(matches!(always.validate(&request), Err(Error::InvalidRequest { field: "thinking", .. })));
    }

    #[test]
    fn unusable_values_are_refused_by_name() {
        assert_eq!(refused_field(|r| r.messages.clear()), "messages");
        assert_eq!(refused_field(|r| r.max_new_tokens = 0), "max_new_tokens");
        assert_eq!(refused_field(|r| r.sampling.temperature = f32::NAN), "temperature");
        assert_eq!(refused_field(|r| r.sampling.top_p = 0.0), "top_p");
        assert_eq!(refused_field(|r| r.sampling.min_p = 2.0), "min_p");
        assert_eq!(refused_field(|r| r.sampling.repetition_penalty = 0.0), "repetition_penalty");
        assert_eq!(refused_field(|r| r.sampling.presence_penalty = 3.0), "presence_penalty");
        assert_eq!(refused_field(|r| r.sampling.frequency_penalty = f32::INFINITY), "frequency_penalty");
        assert_eq!(refused_field(|r| r.logprobs = Some(21)), "logprobs");
        assert_eq!(refused_field(|r| r.prompt = Some("both".into())), "prompt");
        assert_eq!(refused_field(|r| r.stop.push(String::new())), "stop");
    }

    #[test]
    fn the_sweep_finds_what_is_malformed() {
        descriptor().check().unwrap();
        let breakages: [fn(&mut TextLlmDescriptor); 5] = [
            |d| d.id = "Candle Llama".into(),
            |d| d.name.clear(),
            |d| d.backend = "?".into(),
            |d| d.model_types.clear(),
            |d| d.model_types = vec!["llama".into(), "llama".into()],
        ];
        for (index, break_it) in breakages.into_iter().enumerate() {
            let mut broken = descriptor();
            break_it(&mut broken);
            assert!(broken.check().is_err(), "breakage {index} went unnoticed");
        }
    }
}
