//! From tokens to text that can be shown: whole characters, thoughts and calls apart, and nothing of a stop text.

use crate::tools::{CLOSE as CLOSE_CALL, Tools};
use crate::words::Words;
use core_llm::{Channel, Result, StreamEvent, TokenLogprob, ToolCall};
use std::sync::Arc;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A character of text has no more tokens than this; what goes on longer isn't UTF-8.
const LONGEST_CHARACTER: usize = 8;

/// Turns tokens into text as soon as the text can't change any more.
pub(crate) struct Detokenizer {
    words: Arc<Words>,
    tokens: Vec<u32>,
    /// Tokens before this are needed only as context of the next.
    context: usize,
    /// Tokens before this have been given out.
    given: usize,
}

impl Detokenizer {
    pub(crate) fn new(words: Arc<Words>) -> Self {
        Self { words, tokens: Vec::new(), context: 0, given: 0 }
    }

    /// Adds a token and gives the text that is now certain, perhaps none.
    pub(crate) fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let text = self.pending()?;
        // A character that is not whole yet decodes to the replacement character.
        if text.ends_with('\u{fffd}') && self.tokens.len() - self.given < LONGEST_CHARACTER {
            return Ok(String::new());
        }
        self.context = self.given;
        self.given = self.tokens.len();
        Ok(text)
    }

    /// What is left, without a last character that will never be whole.
    pub(crate) fn finish(&mut self) -> Result<String> {
        let text = self.pending()?;
        self.given = self.tokens.len();
        Ok(text.trim_end_matches('\u{fffd}').to_owned())
    }

    fn pending(&self) -> Result<String> {
        let before = self.words.tokenizer.decode(&self.tokens[self.context..self.given], true)?;
        let all = self.words.tokenizer.decode(&self.tokens[self.context..], true)?;
        Ok(all.strip_prefix(before.as_str()).unwrap_or(&all).to_owned())
    }
}

/// Splits text into channels and calls, and watches for stop texts.
pub(crate) struct Splitter {
    stops: Vec<String>,
    /// The tools that may be called.
    tools: Option<Tools>,
    channel: Channel,
    /// Whether the held text is the inside of a call.
    in_call: bool,
    /// Text that may still turn out to be the beginning of a tag or stop text.
    held: String,
    /// Whether a thinking tag may still open: only before any other text.
    may_open: bool,
    /// Right after a tag, whose line breaks belong to neither side.
    after_tag: bool,
    pub(crate) content: String,
    pub(crate) thinking: String,
    pub(crate) calls: Vec<ToolCall>,
    /// Tokens whose text is held, and those of what was given out.
    pending: Vec<TokenLogprob>,
    pub(crate) logprobs: Vec<TokenLogprob>,
}

impl Splitter {
    /// `thinking` if the prompt already ends inside a thought.
    pub(crate) fn new(stops: Vec<String>, thinking: bool, tools: Option<Tools>) -> Self {
        let channel = if thinking { Channel::Thinking } else { Channel::Content };
        Self {
            stops,
            tools,
            channel,
            in_call: false,
            held: String::new(),
            may_open: !thinking,
            after_tag: thinking,
            content: String::new(),
            thinking: String::new(),
            calls: Vec::new(),
            pending: Vec::new(),
            logprobs: Vec::new(),
        }
    }

    /// For a text that is continued as it stands: tags in it are text.
    pub(crate) fn of_plain_text(stops: Vec<String>) -> Self {
        Self { may_open: false, ..Self::new(stops, false, None) }
    }

    /// Where the text goes that comes next.
    pub(crate) fn channel(&self) -> Channel {
        self.channel
    }

    /// Forgets text that is held right behind a thought.
    pub(crate) fn forget_held(&mut self) {
        self.held.clear();
    }

    /// Notes a token before its text is pushed.
    pub(crate) fn note(&mut self, logprob: TokenLogprob) {
        self.pending.push(logprob);
    }

    /// Adds text; true when a stop text was reached, after which nothing more may be added.
    pub(crate) fn push(&mut self, text: &str, on_event: &mut dyn FnMut(StreamEvent)) -> bool {
        self.held.push_str(text);
        loop {
            if self.after_tag {
                self.held = self.held.trim_start_matches('\n').to_owned();
                self.after_tag = self.held.is_empty();
            }
            if self.in_call {
                let Some(end) = self.held.find(CLOSE_CALL) else { return false };
                let rest = self.held.split_off(end + CLOSE_CALL.len());
                self.held.truncate(end);
                let call = std::mem::replace(&mut self.held, rest);
                self.end_call(&call, true, on_event);
                continue;
            }
            if self.is_bare_call() {
                return false;
            }
            match self.next_mark() {
                Some((at, Mark::Stop)) => {
                    self.held.truncate(at);
                    self.release(at, on_event);
                    return true;
                }
                Some((at, Mark::Call(length))) => {
                    self.release(at, on_event);
                    self.held.drain(..length);
                    self.may_open = false;
                    self.in_call = true;
                }
                Some((at, Mark::Tag(tag))) => {
                    self.release(at, on_event);
                    self.held.drain(..tag.len());
                    self.channel = if tag == OPEN { Channel::Thinking } else { Channel::Content };
                    self.may_open = false;
                    self.after_tag = true;
                }
                None => {
                    let certain = self.held.len() - self.uncertain();
                    self.release(certain, on_event);
                    return false;
                }
            }
        }
    }

    /// Gives out what was held back; true when a stop text was in it.
    pub(crate) fn finish(&mut self, on_event: &mut dyn FnMut(StreamEvent)) -> bool {
        if self.in_call || self.is_bare_call() {
            // Models leave the last call unclosed when that is all they have to say.
            let call = std::mem::take(&mut self.held);
            self.end_call(&call, false, on_event);
            if self.push("", on_event) {
                return true;
            }
        }
        self.release(self.held.len(), on_event);
        false
    }

    /// Whether the held text is an answer that may be a call all by itself.
    fn is_bare_call(&self) -> bool {
        let bare = self.tools.as_ref().is_some_and(|tools| tools.style.opening().is_none());
        let begins = self.channel == Channel::Content && self.content.trim().is_empty();
        bare && begins && self.calls.is_empty() && self.held.trim_start().starts_with(['{', '['])
    }

    /// Reads what stood in a call. What is none stays text, and so does all that follows: this model isn't calling.
    fn end_call(&mut self, text: &str, closed: bool, on_event: &mut dyn FnMut(StreamEvent)) {
        let in_tags = std::mem::take(&mut self.in_call);
        match self.tools.as_ref().and_then(|tools| tools.read(text, self.calls.len())) {
            Some(calls) => {
                self.pending.clear();
                self.after_tag = true;
                for call in calls {
                    self.calls.push(call.clone());
                    on_event(StreamEvent::ToolCall(call));
                }
            }
            None => {
                let opening = self.tools.take().and_then(|tools| tools.style.opening()).filter(|_| in_tags);
                let closing = if closed { CLOSE_CALL } else { "" };
                self.held = format!("{}{text}{closing}{}", opening.unwrap_or_default(), self.held);
            }
        }
    }

    /// What opens a call, where one may open.
    fn opening(&self) -> Option<&'static str> {
        self.tools.as_ref().filter(|_| self.channel == Channel::Content)?.style.opening()
    }

    fn tag(&self) -> Option<&'static str> {
        match self.channel {
            Channel::Thinking => Some(CLOSE),
            Channel::Content => self.may_open.then_some(OPEN),
        }
    }

    /// The earliest tag or stop text in the held text. Stop texts count in the answer only.
    fn next_mark(&self) -> Option<(usize, Mark)> {
        let tag = self.tag().and_then(|tag| {
            let at = self.held.find(tag)?;
            (tag == CLOSE || self.held[..at].trim().is_empty()).then_some((at, Mark::Tag(tag)))
        });
        let stops = self.stops.iter().filter(|_| self.channel == Channel::Content);
        let stop = stops.filter_map(|stop| self.held.find(stop.as_str())).min().map(|at| (at, Mark::Stop));
        let call = self.opening().and_then(|opening| Some((self.held.find(opening)?, Mark::Call(opening.len()))));
        // Of marks at the same place the first of these counts.
        [tag, call, stop].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Bytes at the end of the held text that may be the beginning of a mark.
    fn uncertain(&self) -> usize {
        let stops = self.stops.iter().map(String::as_str).filter(|_| self.channel == Channel::Content);
        let marks = stops.chain(self.tag()).chain(self.opening());
        marks.map(|mark| overlap(&self.held, mark)).max().unwrap_or(0)
    }

    fn release(&mut self, bytes: usize, on_event: &mut dyn FnMut(StreamEvent)) {
        let text: String = self.held.drain(..bytes).collect();
        if text.is_empty() {
            return;
        }
        if !text.trim().is_empty() {
            self.may_open = false;
        }
        match self.channel {
            Channel::Content => self.content.push_str(&text),
            Channel::Thinking => self.thinking.push_str(&text),
        }
        let logprobs = std::mem::take(&mut self.pending);
        self.logprobs.extend_from_slice(&logprobs);
        on_event(StreamEvent::Token { text, channel: self.channel, logprobs });
    }
}

enum Mark {
    Tag(&'static str),
    Call(usize),
    Stop,
}

/// Length of the longest end of `text` that begins `mark`.
fn overlap(text: &str, mark: &str) -> usize {
    let ends = (1..mark.len()).rev().filter(|n| mark.is_char_boundary(*n));
    ends.into_iter().find(|n| text.ends_with(&mark[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_arrive_whole() {
        let words = Words::demo();
        let tokenizer = &words.tokenizer;
        let text = "naïve 🦀🦀 crabs, 日本語 and e\u{fffd}x";
        let tokens = tokenizer.encode(text).unwrap();
        let mut detokenizer = Detokenizer::new(words.clone());
        let pieces: Vec<String> = tokens.iter().map(|token| detokenizer.push(*token).unwrap()).collect();
        assert_eq!(pieces.concat() + &detokenizer.finish().unwrap(), text);
        assert!(
            pieces.iter().filter(|piece| piece.is_empty()).count() > 8,
            "the text has characters of several tokens"
        );

        // What is cut off within a character ends before it, and what is no text at all still goes on.
        let crab = tokenizer.encode("🦀").unwrap();
        let mut detokenizer = Detokenizer::new(words.clone());
        assert_eq!(detokenizer.push(crab[0]).unwrap() + &detokenizer.finish().unwrap(), "");
        let mut detokenizer = Detokenizer::new(words.clone());
        let pieces: Vec<String> = (0..100).map(|_| detokenizer.push(crab[0]).unwrap()).collect();
        assert!(!pieces.concat().is_empty());
        assert!(detokenizer.tokens.len() - detokenizer.context <= 2 * LONGEST_CHARACTER);
    }

    /// Feeds `text` in pieces of `size` characters; gives content, thinking, whether it stopped, and the streamed content.
    fn split(text: &str, stops: &[&str], size: usize) -> (String, String, bool, String) {
        let mut splitter = Splitter::new(stops.iter().map(|s| s.to_string()).collect(), false, None);
        let mut streamed = String::new();
        let mut on_event = |event| {
            if let StreamEvent::Token { text, channel: Channel::Content, .. } = event {
                streamed.push_str(&text);
            }
        };
        let characters: Vec<char> = text.chars().collect();
        let mut stopped = false;
        for piece in characters.chunks(size) {
            if splitter.push(&piece.iter().collect::<String>(), &mut on_event) {
                stopped = true;
                break;
            }
        }
        if !stopped {
            splitter.finish(&mut on_event);
        }
        (splitter.content, splitter.thinking, stopped, streamed)
    }

    #[test]
    fn a_stop_text_never_leaks_however_it_is_cut() {
        for size in 1..12 {
            let (content, _, stopped, streamed) = split("one two END three", &["END", "ENDLESS"], size);
            assert_eq!(
                (content.as_str(), stopped, streamed.as_str()),
                ("one two ", true, "one two "),
                "pieces of {size}"
            );
            let (content, _, stopped, _) = split("one two EN", &["END"], size);
            assert_eq!((content.as_str(), stopped), ("one two EN", false));
        }
    }

    #[test]
    fn thoughts_are_kept_apart_however_they_are_cut() {
        for size in 1..30 {
            let (content, thinking, _, streamed) = split("<think>\nhm END\n</think>\n\nyes", &["END"], size);
            assert_eq!(
                (content.as_str(), thinking.as_str(), streamed.as_str()),
                ("yes", "hm END\n", "yes"),
                "pieces of {size}"
            );
        }
    }

    #[test]
    fn tags_in_a_plain_text_are_text() {
        let mut splitter = Splitter::of_plain_text(vec!["END".into()]);
        assert!(splitter.push("<think>\nhm</think>END", &mut |_| {}));
        assert_eq!((splitter.content.as_str(), splitter.thinking.as_str()), ("<think>\nhm</think>", ""));
    }

    /// Content, calls and whether it stopped.
    fn call(style: crate::tools::ToolStyle, text: &str, stops: &[&str], size: usize) -> (String, Vec<String>, bool) {
        let tool = serde_json::json!({"type": "function", "function": {"name": "f"}});
        let request = core_llm::TextLlmRequest { tools: vec![tool], ..core_llm::TextLlmRequest::new(vec![], 1) };
        let tools = Tools::of(&request, style, &[1]);
        let mut splitter = Splitter::new(stops.iter().map(|s| s.to_string()).collect(), false, tools);
        let (mut streamed, mut called) = (String::new(), 0);
        let mut on_event = |event| match event {
            StreamEvent::Token { text, .. } => streamed.push_str(&text),
            StreamEvent::ToolCall(_) => called += 1,
            StreamEvent::Done { .. } => {}
        };
        let characters: Vec<char> = text.chars().collect();
        let pieces = characters.chunks(size).map(|piece| piece.iter().collect::<String>());
        let mut stopped = pieces.into_iter().any(|piece| splitter.push(&piece, &mut on_event));
        if !stopped {
            stopped = splitter.finish(&mut on_event);
        }
        assert_eq!((&streamed, called), (&splitter.content, splitter.calls.len()));
        (splitter.content, splitter.calls.iter().map(|c| c.arguments.to_string()).collect(), stopped)
    }

    #[test]
    fn calls_are_read_however_they_are_cut() {
        use crate::tools::ToolStyle::{Bare, Tagged, Xml};
        let tagged = "Well. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"f\"}";
        let xml = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
        let words = |text: &[&str]| text.iter().map(|t| t.to_string()).collect::<Vec<_>>();
        for size in [1, 2, 3, 7, 200] {
            let found = call(Tagged, tagged, &["END"], size);
            assert_eq!(found, ("Well. ".into(), words(&["{\"a\":1}", "{}"]), false), "pieces of {size}");
            assert_eq!(call(Xml, xml, &[], size), (String::new(), words(&["{\"a\":1}"]), false));
            let bare = call(Bare, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", &[], size);
            assert_eq!(bare, (String::new(), words(&["{\"a\":1}"]), false));
            // What is no call is text, to the last byte, and stop texts are looked for in it.
            for no_call in
                ["<tool_call>{]</tool_call> and so on", "a <tool_call> b", "<tool_call>{\"name\": \"g\"}</tool_call>"]
            {
                assert_eq!(call(Tagged, no_call, &[], size), (no_call.to_owned(), vec![], false));
            }
            assert_eq!(call(Bare, "{\"a\": 1} and", &[], size), ("{\"a\": 1} and".into(), vec![], false));
            assert_eq!(call(Tagged, "<tool_call>a END b", &["END"], size), ("<tool_call>a ".into(), vec![], true));
        }
    }

    #[test]
    fn a_tag_within_an_answer_is_text() {
        let (content, thinking, ..) = split("say <think> aloud", &[], 3);
        assert_eq!((content.as_str(), thinking.as_str()), ("say <think> aloud", ""));
    }

    #[test]
    fn many_byte_characters_survive_the_hold_back() {
        let (content, ..) = split("naïve 🦀🦀 end", &["🦀🦀🦀"], 1);
        assert_eq!(content, "naïve 🦀🦀 end");
    }
}
