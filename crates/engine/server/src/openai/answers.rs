//! What the answers of the text routes have in common.

use core_llm::{FinishReason, Usage};
use serde::Serialize;
use utoipa::ToSchema;

/// Tokens of a request and its answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct UsageBody {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl UsageBody {
    /// Of all answers to a request, which gives `n` to each prompt; a prompt counts once.
    pub(crate) fn of(usages: impl IntoIterator<Item = (usize, Usage)>, n: usize) -> Self {
        usages.into_iter().fold(Self::default(), |sum, (index, usage)| {
            let prompt_tokens = sum.prompt_tokens + if index % n == 0 { usage.prompt_tokens } else { 0 };
            let completion_tokens = sum.completion_tokens + usage.completion_tokens;
            Self { prompt_tokens, completion_tokens, total_tokens: prompt_tokens + completion_tokens }
        })
    }
}

/// Why an answer ended, in OpenAI's words.
pub(crate) fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_once() {
        let usage = |completion_tokens| Usage { prompt_tokens: 10, completion_tokens };
        let all = UsageBody::of([(1, usage(2)), (0, usage(1)), (3, usage(4)), (2, usage(3))], 2);
        assert_eq!(all, UsageBody { prompt_tokens: 20, completion_tokens: 10, total_tokens: 30 });
    }
}
