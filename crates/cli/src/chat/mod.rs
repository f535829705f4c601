//! `inline chat`: a conversation at the terminal, or one answer for a script.

mod answer;
mod interrupt;
mod terminal;

use crate::args::{ChatArgs, SettingsArgs};
use crate::{Failure, Result, setup};
use answer::Conversation;
use interrupt::Interrupts;
use runtime_cpu::core_llm::{CancelFlag, Constraint, LoadSpec, SamplingParams, TextLlm, TextLlmRequest, Thinking};
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub(crate) fn run(settings: &SettingsArgs, args: &ChatArgs) -> Result<()> {
    let start = Instant::now();
    let base = request(args)?;
    let prompt = prompt(args)?;
    let model = load(settings, &args.model)?;
    let interrupts = Interrupts::watch()?;
    let mut conversation = Conversation::new(&*model, base, args.system.as_deref(), interrupts);
    match prompt {
        Some(prompt) => conversation.once(&prompt, args.timings.then_some(start)),
        None => terminal::converse(&mut conversation, args.timings),
    }
}

/// The one question of a script; `None` for a conversation.
fn prompt(args: &ChatArgs) -> Result<Option<String>> {
    let text = match &args.prompt {
        Some(text) if text != "-" => text.clone(),
        None if std::io::stdin().is_terminal() => return Ok(None),
        _ => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map_err(|e| Failure(format!("standard input can't be read as text: {e}")))?;
            text.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    if text.trim().is_empty() {
        Err(Failure("the prompt is empty; write what to answer".into()))
    } else {
        Ok(Some(text))
    }
}

/// What the settings ask of every answer.
fn request(args: &ChatArgs) -> Result<TextLlmRequest> {
    let of = SamplingParams::default();
    let number = |name: &str, text: &Option<String>, otherwise: f32| match text {
        None => Ok(otherwise),
        Some(text) => text.parse().map_err(|_| Failure(format!("--{name}: '{text}' is not a number"))),
    };
    let request = TextLlmRequest {
        sampling: SamplingParams {
            temperature: number("temperature", &args.temperature, of.temperature)?,
            top_p: number("top-p", &args.top_p, of.top_p)?,
            ..of
        },
        seed: seed(args.seed.as_deref())?,
        constraint: args.json_schema.as_deref().map(json_schema).transpose()?,
        thinking: match args.thinking {
            None => Thinking::Auto,
            Some(true) => Thinking::Enabled,
            Some(false) => Thinking::Disabled,
        },
        // Checked as it will be asked, before a model is loaded.
        ..TextLlmRequest::continuing("?", args.max_tokens.unwrap_or(TextLlmRequest::AS_MANY_AS_FIT))
    };
    request.check().map_err(Failure::of)?;
    Ok(TextLlmRequest { prompt: None, ..request })
}

fn seed(text: Option<&str>) -> Result<u64> {
    match text {
        None | Some("-1") => Ok(uuid::Uuid::new_v4().as_u64_pair().0),
        Some(text) => text.parse().map_err(|_| Failure(format!("--seed: '{text}' is not a number from -1 to 2^64-1"))),
    }
}

/// A schema as it stands, or a file with one.
fn json_schema(text: &str) -> Result<Constraint> {
    let from_file =
        || std::fs::read_to_string(text).map_err(|e| Failure(format!("--json-schema: {text} can't be read: {e}")));
    let text = if text.trim_start().starts_with('{') { text.to_owned() } else { from_file()? };
    let schema = serde_json::from_str(&text).map_err(|e| Failure(format!("--json-schema: not valid JSON: {e}")))?;
    Ok(Constraint::JsonSchema(schema))
}

/// The model at a path, else the one of that name in the models folder.
fn load(settings: &SettingsArgs, name: &str) -> Result<Arc<dyn TextLlm>> {
    if Path::new(name).exists() {
        let registry = runtime_cpu::text_registry().map_err(Failure::of)?;
        return registry.load_for_model(&LoadSpec::dense(name)).map(Arc::from).map_err(Failure::of);
    }
    let nodes = setup::local_nodes(settings)?;
    let language = nodes.language();
    let file = language.find(name).map_err(|e| Failure(format!("{e}; a path to a GGUF file or folder works, too")))?;
    language.language(&file, &CancelFlag::new()).map_err(Failure::of)
}
