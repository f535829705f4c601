//! Chat templates: Jinja programs that come with a model.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value};
use runtime_base::{Error, Result, WeightsSource};
use serde::Serialize;
use weights::GgufMetadata;

const NAME: &str = "chat";

/// What a template is told beside the messages.
#[derive(Debug, Clone, Copy, Default)]
pub struct TemplateOptions<'a> {
    /// Ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// For models that can think: whether they should. `None` leaves the choice to the template.
    pub enable_thinking: Option<bool>,
    /// JSON descriptions of tools.
    pub tools: Option<&'a [serde_json::Value]>,
}

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// Reads the template of a source: `chat_template.jinja`, else the one in `tokenizer_config.json`.
    ///
    /// `None` if there is neither: models that were never taught to chat have no template, and a guessed one would have
    /// them answer in a format that they don't know.
    ///
    /// # Errors
    /// It is not valid Jinja.
    pub fn load(source: &WeightsSource, subfolder: Option<&str>) -> Result<Option<Self>> {
        let at = |name: &str| source.path().join(subfolder.unwrap_or("")).join(name);
        let config = match super::read(source, subfolder, "tokenizer_config.json")? {
            Some(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::weights(at("tokenizer_config.json"), format!("is not valid JSON: {e}")))?,
            None => serde_json::Value::Null,
        };
        let text = match super::read(source, subfolder, "chat_template.jinja")? {
            Some(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            None => named_template(&config),
        };
        text.map(|text| Self::new(text, &config)).transpose()
    }

    /// The template in the metadata of a GGUF file, if there is one.
    ///
    /// # Errors
    /// It is not valid Jinja.
    pub fn from_gguf(metadata: &GgufMetadata) -> Result<Option<Self>> {
        super::gguf::template(metadata).map(|(text, config)| Self::new(text, &config)).transpose()
    }

    /// Makes a template of its text; special tokens come from a `tokenizer_config.json`.
    ///
    /// # Errors
    /// The text is not valid Jinja.
    pub fn new(text: String, config: &serde_json::Value) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::Backend(format!("chat templates: {e}")))?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment
            .add_template_owned(NAME, text)
            .map_err(|e| Error::Unsupported(format!("the model's chat template can't be used: {e}")))?;
        let token = |key: &str| match config.get(key) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.get("content").and_then(|c| c.as_str()).unwrap_or_default().to_owned(),
            None => String::new(),
        };
        let special_tokens = ["bos_token", "eos_token", "pad_token", "unk_token"].map(|key| (key, token(key))).into();
        Ok(Self { environment, special_tokens })
    }

    /// Whether the template's own text holds `text`, such as the name of a variable that it looks at.
    pub fn mentions(&self, text: &str) -> bool {
        self.environment.get_template(NAME).is_ok_and(|template| template.source().contains(text))
    }

    /// The text of a conversation. Messages are objects with `role` and `content` as templates expect them.
    ///
    /// # Errors
    /// The template refuses the messages; the message is its own.
    pub fn render<M: Serialize>(&self, messages: &[M], options: TemplateOptions<'_>) -> Result<String> {
        let failed = |e: minijinja::Error| Error::Unsupported(format!("the model's chat template failed: {e}"));
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let mut values: Vec<(String, Value)> =
            self.special_tokens.iter().map(|(key, text)| ((*key).to_owned(), Value::from(text.as_str()))).collect();
        values.push(("messages".into(), Value::from(Serde(messages))));
        values.push(("add_generation_prompt".into(), options.add_generation_prompt.into()));
        // Templates ask whether these are defined at all.
        values.extend(options.enable_thinking.map(|on| ("enable_thinking".into(), on.into())));
        values.extend(options.tools.map(|tools| ("tools".into(), Value::from(Serde(tools)))));
        template.render(Value::from_pairs(values)).map_err(failed)
    }
}

/// The template of a config: a text, or the one called `default` of several.
fn named_template(config: &serde_json::Value) -> Option<String> {
    match config.get("chat_template")? {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Array(list) => {
            let named = |name: &str| list.iter().find(|t| t.get("name").and_then(|n| n.as_str()) == Some(name));
            named("default")?.get("template")?.as_str().map(str::to_owned)
        }
        _ => None,
    }
}
