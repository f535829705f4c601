//! One answer in the making: logits in, tokens and events out. It knows no model, so that whoever computes the logits is
//! free to compute those of many answers together.

use crate::choose::Chooser;
use crate::stream::{Detokenizer, Splitter};
use crate::words::{Prompt, Words};
use core_llm::{FinishReason, Result, StreamEvent, TextLlmOutput, TextLlmRequest, Usage};
use std::sync::Arc;

/// What an answer needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The logits after this token.
    Token(u32),
    /// Nothing more: it is complete.
    Done,
}

/// One answer in the making.
pub(crate) struct Answer {
    words: Arc<Words>,
    chooser: Chooser,
    detokenizer: Detokenizer,
    splitter: Splitter,
    prompt_tokens: usize,
    max_new_tokens: usize,
    made: usize,
    /// Set when the model or a stop text ended it, rather than the length.
    ended: bool,
    /// Set when a stop text ended it, after which there is nothing more to give out.
    stopped: bool,
}

impl Answer {
    /// An answer to `request`, whose prompt is `prompt`.
    ///
    /// # Errors
    /// The request can't be followed.
    pub(crate) fn new(words: Arc<Words>, request: &TextLlmRequest, prompt: &Prompt) -> Result<Self> {
        let mut chooser = Chooser::new(&request.sampling, request.seed);
        chooser.see(&prompt.tokens);
        Ok(Self {
            chooser,
            detokenizer: Detokenizer::new(words.clone()),
            splitter: Splitter::new(request.stop.clone(), prompt.opens_thought),
            prompt_tokens: prompt.tokens.len(),
            max_new_tokens: request.max_new_tokens,
            made: 0,
            ended: false,
            stopped: false,
            words,
        })
    }

    /// Chooses the next token from the logits after the last one (first: after the prompt) and gives the text that it
    /// makes certain to `on_event`. After [`Next::Done`] it must not be called again.
    ///
    /// # Errors
    /// The logits are no distribution, or the tokenizer fails.
    pub(crate) fn take(&mut self, logits: Vec<f32>, on_event: &mut dyn FnMut(StreamEvent)) -> Result<Next> {
        let token = self.chooser.choose(logits)?;
        self.made += 1;
        if self.words.ends.contains(&token) {
            self.ended = true;
            return Ok(Next::Done);
        }
        self.stopped = self.splitter.push(&self.detokenizer.push(token)?, on_event);
        self.ended = self.stopped;
        Ok(if self.stopped || self.made == self.max_new_tokens { Next::Done } else { Next::Token(token) })
    }

    /// Gives out what was held back and says what became of the whole.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub(crate) fn finish(mut self, on_event: &mut dyn FnMut(StreamEvent)) -> Result<TextLlmOutput> {
        if !self.stopped {
            self.stopped = self.splitter.push(&self.detokenizer.finish()?, on_event);
        }
        if !self.stopped {
            self.splitter.finish(on_event);
        }
        let finish_reason = if self.ended || self.stopped { FinishReason::Stop } else { FinishReason::Length };
        let usage = Usage { prompt_tokens: self.prompt_tokens, completion_tokens: self.made };
        on_event(StreamEvent::Done { finish_reason, usage });
        let thinking = Some(self.splitter.thinking).filter(|t| !t.is_empty());
        Ok(TextLlmOutput { text: self.splitter.content, thinking, tool_calls: Vec::new(), finish_reason, usage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_move_between_threads() {
        fn sent<T: Send>() {}
        sent::<Answer>();
    }
}
