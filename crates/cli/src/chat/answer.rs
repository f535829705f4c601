//! Questions and answers, streamed to standard output.

use super::interrupt::Interrupts;
use crate::{Failure, Result};
use runtime_cpu::core_llm::{
    CancelFlag, Channel, Error, FinishReason, Message, StreamEvent, TextLlm, TextLlmOutput, TextLlmRequest,
};
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Dim, and back: how thoughts are shown.
const DIM: (&str, &str) = ("\x1b[2m", "\x1b[0m");

pub(super) struct Conversation<'a> {
    model: &'a dyn TextLlm,
    base: TextLlmRequest,
    system: Option<&'a str>,
    interrupts: Interrupts,
    messages: Vec<Message>,
}

/// What became of a question.
enum Answered {
    Whole(TextLlmOutput),
    /// Interrupted after this text.
    Stopped(String),
    /// Nobody reads standard output any more.
    Unheard,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        model: &'a dyn TextLlm,
        base: TextLlmRequest,
        system: Option<&'a str>,
        interrupts: Interrupts,
    ) -> Self {
        let mut new = Self { model, base, system, interrupts, messages: Vec::new() };
        new.clear();
        new
    }

    /// Forgets what was said.
    pub(super) fn clear(&mut self) {
        self.messages = self.system.map(Message::system).into_iter().collect();
    }

    /// Answers one question and is done; the times are counted from `since`.
    ///
    /// # Errors
    /// The model can't answer, or was interrupted.
    pub(super) fn once(&mut self, prompt: &str, since: Option<Instant>) -> Result<()> {
        self.messages.push(Message::user(prompt));
        match self.answer(since)? {
            Answered::Whole(output) => {
                println!();
                if output.finish_reason == FinishReason::Length
                    && self.base.max_new_tokens == TextLlmRequest::AS_MANY_AS_FIT
                {
                    eprintln!("the model's context is full; the answer was cut off");
                }
                Ok(())
            }
            Answered::Stopped(_) => {
                println!();
                Err(Failure("interrupted".into()))
            }
            Answered::Unheard => Ok(()),
        }
    }

    /// Answers a question within the conversation. One that can't be answered is not remembered.
    ///
    /// # Errors
    /// The model can't answer.
    pub(super) fn say(&mut self, prompt: &str, timings: bool) -> Result<()> {
        self.messages.push(Message::user(prompt));
        let answered = self.answer(timings.then(Instant::now)).inspect_err(|_| drop(self.messages.pop()))?;
        println!();
        match answered {
            Answered::Whole(output) => {
                let answer = Message { thinking: output.thinking, ..Message::assistant(output.text) };
                self.messages.push(answer);
            }
            Answered::Stopped(text) => {
                eprintln!("(stopped)");
                self.messages.push(Message::assistant(text));
            }
            Answered::Unheard => {}
        }
        Ok(())
    }

    fn answer(&self, since: Option<Instant>) -> Result<Answered> {
        let cancel = CancelFlag::new();
        let _stopping = self.interrupts.stop(&cancel);
        let request = TextLlmRequest { messages: self.messages.clone(), cancel: cancel.clone(), ..self.base.clone() };
        let mut printer = Printer { said: String::new(), first: None, unheard: false, thinking: false };
        let answered = self.model.generate(&request, &mut |event| {
            if let StreamEvent::Token { text, channel, .. } = event {
                printer.print(&text, channel);
                if printer.unheard {
                    cancel.cancel();
                }
            }
        });
        printer.end_thought();
        if let (Some(since), Some(first), Ok(output)) = (since, printer.first, &answered) {
            let rest = first.elapsed().as_secs_f64();
            let tokens = output.usage.completion_tokens;
            eprintln!(
                "\nfirst token after {} ms, {} prompt tokens; then {:.1} tokens/s",
                (first - since).as_millis(),
                output.usage.prompt_tokens,
                tokens.saturating_sub(1) as f64 / rest.max(1e-9),
            );
        }
        match answered {
            Ok(output) => Ok(Answered::Whole(output)),
            Err(Error::Cancelled) if printer.unheard => Ok(Answered::Unheard),
            Err(Error::Cancelled) => Ok(Answered::Stopped(printer.said)),
            Err(error) => Err(Failure::of(error)),
        }
    }
}

/// Shows an answer as it comes: the text on standard output, thoughts on a terminal's standard error only.
struct Printer {
    said: String,
    first: Option<Instant>,
    unheard: bool,
    thinking: bool,
}

impl Printer {
    fn print(&mut self, text: &str, channel: Channel) {
        self.first.get_or_insert_with(Instant::now);
        if channel == Channel::Thinking {
            if std::io::stderr().is_terminal() {
                let begin = if std::mem::replace(&mut self.thinking, true) { "" } else { DIM.0 };
                eprint!("{begin}{text}");
            }
            return;
        }
        self.end_thought();
        self.said.push_str(text);
        let mut out = std::io::stdout().lock();
        self.unheard = out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err();
    }

    fn end_thought(&mut self) {
        if std::mem::take(&mut self.thinking) {
            eprintln!("{}", DIM.1);
        }
    }
}
