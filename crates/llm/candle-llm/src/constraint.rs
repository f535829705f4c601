//! Constrained decoding: which tokens may come next so that the text can still become what was asked for.

use crate::schema;
use core_llm::{Constraint, Error, Result};
use layers::text::Tokenizer;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, panic_utils, token_bytes_from_tokenizer_json};
use serde_json::{Value, json};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// Longest grammar or expression in bytes, and its deepest brackets.
const MAX_GRAMMAR: usize = 64 << 10;
const MAX_BRACKETS: usize = 64;

/// A tokenizer's tokens as bytes, ready to be matched.
pub(crate) struct Matchers(ParserFactory);

impl Matchers {
    /// Takes the tokens of `tokenizer`, of which `ends` end a text.
    ///
    /// # Errors
    /// Why they can't be matched.
    pub(crate) fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, String> {
        let json = tokenizer.to_json()?;
        let build = || {
            let mut tokens = token_bytes_from_tokenizer_json(&json)?;
            let last = ends.iter().copied().max().map_or(0, |id| id as usize + 1);
            tokens.resize(tokens.len().max(last), Vec::new());
            let info = TokRxInfo::new(tokens.len() as u32, ends.first().copied().unwrap_or_default());
            let mut trie = TokTrie::from(&info, &tokens);
            if !ends.is_empty() {
                trie = trie.with_eos_tokens(ends);
            }
            let environment: llguidance::toktrie::TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = llguidance::earley::SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)?;
            factory.quiet();
            factory.limits_mut().verbose_errors = false;
            Ok(factory)
        };
        panic_utils::catch_unwind(AssertUnwindSafe(build)).map(Self).map_err(|e| first_line(&e))
    }

    /// A matcher of a grammar; `field` is the request's field that it comes from.
    ///
    /// # Errors
    /// The grammar can't be followed.
    pub(crate) fn matcher(&self, grammar: TopLevelGrammar, field: &'static str) -> Result<Limits> {
        let build = || {
            let mut matcher = Matcher::new(self.0.create_parser(grammar));
            match matcher.get_error() {
                Some(error) => Err(anyhow::anyhow!(error)),
                // A grammar without any text shows here rather than in mid-answer.
                None => matcher.compute_mask_or_eos().map(|_| matcher),
            }
        };
        let matcher = panic_utils::catch_unwind(AssertUnwindSafe(build));
        let matcher = matcher.map_err(|e| Error::invalid(field, format!("can't be followed: {}", first_line(&e))))?;
        Ok(Limits { matcher })
    }
}

fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(300).collect()
}

/// The grammar of a constraint.
///
/// # Errors
/// It is none, or has no finite text.
pub(crate) fn grammar(constraint: &Constraint) -> Result<GrammarWithLexer> {
    let invalid = |message: String| Error::invalid("constraint", message);
    let sized = |text: &str| {
        let deepest = brackets(text);
        if text.len() > MAX_GRAMMAR || deepest > MAX_BRACKETS {
            let message = format!("must have at most {MAX_GRAMMAR} bytes and {MAX_BRACKETS} nested brackets");
            return Err(invalid(message));
        }
        Ok(())
    };
    match constraint {
        Constraint::Json => Ok(GrammarWithLexer::from_json_schema(compact(json!({})))),
        Constraint::JsonSchema(schema) => {
            schema::check(schema).map_err(|problem| invalid(format!("the JSON schema {problem}")))?;
            Ok(GrammarWithLexer::from_json_schema(compact(schema.clone())))
        }
        Constraint::Regex(expression) => {
            sized(expression)?;
            Ok(GrammarWithLexer::from_regex(expression))
        }
        Constraint::Grammar(grammar) => {
            sized(grammar)?;
            Ok(GrammarWithLexer::from_lark(grammar.clone()))
        }
    }
}

/// A schema whose documents have no free white space, which small models would otherwise write for ever.
pub(crate) fn compact(schema: Value) -> Value {
    let options = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    match schema {
        Value::Object(mut object) => {
            object.insert("x-guidance".into(), options);
            Value::Object(object)
        }
        Value::Bool(true) => json!({"x-guidance": options}),
        other => other,
    }
}

fn brackets(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// What may still come in one answer.
pub(crate) struct Limits {
    matcher: Matcher,
}

impl Limits {
    /// Takes from `logits` what may not come next, but for the tokens `besides`.
    ///
    /// # Errors
    /// The grammar is too ambiguous to be followed further.
    pub(crate) fn apply(&mut self, logits: &mut [f32], besides: Option<u32>) -> Result<()> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| failed(&e))?;
        for (token, logit) in logits.iter_mut().enumerate() {
            let allowed = token < mask.len() && mask.get(token) || besides == Some(token as u32);
            if !allowed {
                *logit = f32::NEG_INFINITY;
            }
        }
        if mask.is_zero() { Err(failed(&"no token can follow")) } else { Ok(()) }
    }

    /// Takes a token; true if the text is complete and nothing can follow.
    ///
    /// # Errors
    /// As [`Self::apply`].
    pub(crate) fn accept(&mut self, token: u32) -> Result<bool> {
        self.matcher.consume_token(token).map_err(|e| failed(&e))?;
        Ok(self.matcher.is_stopped())
    }
}

fn failed(error: &impl std::fmt::Display) -> Error {
    Error::invalid("constraint", format!("couldn't be followed to its end: {}", first_line(error)))
}
