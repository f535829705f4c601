//! One answer in the making: logits in, tokens and events out. It knows no model, so that whoever computes the logits is
//! free to compute those of many answers together.

use crate::choose::{Chooser, logprobs};
use crate::constraint::{self, Limits};
use crate::stream::{Detokenizer, Splitter};
use crate::tools::Tools;
use crate::words::{Prompt, Words};
use core_llm::{
    Channel, Error, FinishReason, Result, StreamEvent, TextLlmOutput, TextLlmRequest, Thinking, ThinkingSupport,
    TokenChoice, TokenLogprob, ToolChoice, Usage,
};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
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
    limits: Option<Limits>,
    /// The token that may open a thought before what is limited.
    opens_thought: Option<u32>,
    top_logprobs: Option<usize>,
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
        let tools = Tools::of(request, words.tool_style, &prompt.tokens);
        let limits = limits(&words, request, tools.as_ref())?;
        let may_think = request.thinking != Thinking::Disabled && words.thinking() != ThinkingSupport::None;
        let thought_tokens = || Some((words.tokenizer.token_id("<think>")?, words.tokenizer.token_id("</think>")?));
        let opens_thought = limits.as_ref().filter(|_| may_think).and_then(|_| thought_tokens());
        if limits.is_some() && prompt.opens_thought && opens_thought.is_none() {
            let message = "this model always thinks first, and the end of its thoughts is no token of its own";
            return Err(Error::invalid("constraint", message));
        }
        let mut chooser = Chooser::new(&request.sampling, request.seed);
        chooser.see(&prompt.tokens);
        Ok(Self {
            chooser,
            detokenizer: Detokenizer::new(words.clone()),
            splitter: match request.prompt {
                Some(_) => Splitter::of_plain_text(request.stop.clone()),
                None => Splitter::new(request.stop.clone(), prompt.opens_thought, tools),
            },
            limits,
            opens_thought: opens_thought.map(|(open, _)| open),
            top_logprobs: request.logprobs,
            prompt_tokens: prompt.tokens.len(),
            max_new_tokens: request.max_new_tokens.min(prompt.room),
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
        let raw = self.top_logprobs.map(|_| logits.clone());
        let limited = self.limits.is_some() && self.splitter.channel() == Channel::Content;
        let mut logits = logits;
        self.limit(&mut logits, limited)?;
        let token = self.chooser.choose(logits)?;
        self.made += 1;
        if self.words.ends.contains(&token) {
            self.ended = true;
            return Ok(Next::Done);
        }
        if let (Some(raw), Some(top)) = (raw, self.top_logprobs) {
            let noted = self.describe(&raw, token, top)?;
            self.splitter.note(noted);
        }
        let thinks_first = self.made == 1 && self.opens_thought == Some(token);
        let complete = match &mut self.limits {
            Some(limits) if limited && !thinks_first => limits.accept(token)?,
            _ => false,
        };
        self.stopped = self.splitter.push(&self.detokenizer.push(token)?, on_event);
        if self.limits.is_some() && !limited && self.splitter.channel() == Channel::Content {
            // What a token holds beyond the end of a thought has passed no limits.
            self.splitter.forget_held();
        }
        self.ended = self.stopped || complete;
        Ok(if self.ended || self.made == self.max_new_tokens { Next::Done } else { Next::Token(token) })
    }

    /// Takes from `logits` what may not come next.
    fn limit(&mut self, logits: &mut [f32], limited: bool) -> Result<()> {
        match &mut self.limits {
            Some(limits) if limited => limits.apply(logits, self.opens_thought.filter(|_| self.made == 0)),
            Some(_) => {
                // An answer that ended within its thought would match nothing.
                let ends = self.words.ends.iter();
                ends.for_each(|end| logits.iter_mut().skip(*end as usize).take(1).for_each(|l| *l = f32::NEG_INFINITY));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn describe(&self, logits: &[f32], token: u32, top: usize) -> Result<TokenLogprob> {
        let choice = |id: u32, logprob: f32| {
            let text = self.words.tokenizer.decode(&[id], false)?;
            Ok(TokenChoice { id, text, logprob })
        };
        let (chosen, likeliest) = logprobs(logits, token, top);
        let top: Result<Vec<_>> = likeliest.into_iter().map(|(id, logprob)| choice(id, logprob)).collect();
        Ok(TokenLogprob { token: choice(token, chosen)?, top: top? })
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
            self.stopped = self.splitter.finish(on_event);
        }
        let finish_reason = match self.ended || self.stopped {
            true if !self.splitter.calls.is_empty() => FinishReason::ToolCalls,
            true => FinishReason::Stop,
            false => FinishReason::Length,
        };
        let usage = Usage { prompt_tokens: self.prompt_tokens, completion_tokens: self.made };
        on_event(StreamEvent::Done { finish_reason, usage });
        let thinking = Some(self.splitter.thinking).filter(|t| !t.is_empty());
        Ok(TextLlmOutput {
            text: self.splitter.content,
            thinking,
            tool_calls: self.splitter.calls,
            logprobs: self.splitter.logprobs,
            finish_reason,
            usage,
        })
    }
}

/// What the request limits an answer to.
fn limits(words: &Words, request: &TextLlmRequest, tools: Option<&Tools>) -> Result<Option<Limits>> {
    if let Some(tools) = tools {
        tools.check()?;
        let only = match &request.tool_choice {
            ToolChoice::Required => Some(None),
            ToolChoice::Named(name) => Some(Some(name.as_str())),
            _ => None,
        };
        if let Some(only) = only {
            return words.matchers()?.matcher(tools.grammar(only), "tools").map(Some);
        }
    }
    let Some(wanted) = &request.constraint else { return Ok(None) };
    if !request.stop.is_empty() {
        let message = "an answer that must match a constraint ends by itself; leave the stop texts out";
        return Err(Error::invalid("stop", message));
    }
    let mut answer = constraint::grammar(wanted)?;
    let Some(tools) = tools else {
        return words.matchers()?.matcher(TopLevelGrammar::from_grammar(answer), "constraint").map(Some);
    };
    // Either a call or an answer that matches.
    let mut call = tools.grammar(None).grammars;
    answer.name = Some("answer".into());
    call.iter_mut().for_each(|grammar| grammar.name = Some("call".into()));
    let start = GrammarWithLexer::from_lark("start: @answer | @call".into());
    let grammars = [vec![start, answer], call].concat();
    words.matchers()?.matcher(TopLevelGrammar { grammars, max_tokens: None }, "constraint").map(Some)
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
