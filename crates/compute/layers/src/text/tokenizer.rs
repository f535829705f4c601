//! Tokenizers from `tokenizer.json` and from GGUF files.

use runtime_base::{Error, Result, Role, WeightsSource};
use weights::Checkpoint;

/// A byte-level or word-piece tokenizer as its `tokenizer.json` describes it.
pub struct Tokenizer(tokenizers::Tokenizer);

impl Tokenizer {
    /// Reads `tokenizer.json` of a source, from `subfolder` if given.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn load(source: &WeightsSource, subfolder: Option<&str>) -> Result<Self> {
        let file = "tokenizer.json";
        let bytes = super::read(source, subfolder, file)?.ok_or_else(|| Error::MissingComponent {
            role: Role::Tokenizer,
            path: source.path().to_owned(),
            message: format!("no {file} was found; put the model's own next to its text encoder"),
        })?;
        Self::from_bytes(&bytes).map_err(|message| Error::weights(source.path().join(file), message))
    }

    /// Reads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// Why it can't be used.
    pub fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, String> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| format!("is a damaged tokenizer: {e}"))?;
        // Limits and padding are the caller's business: a prompt is never cut silently.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| format!("is a damaged tokenizer: {e}"))?;
        Ok(Self(inner))
    }

    /// Makes the tokenizer that the metadata of a GGUF file describes.
    ///
    /// # Errors
    /// There is none, or it is damaged or of a kind that isn't known.
    pub fn from_gguf(checkpoint: &Checkpoint) -> Result<Self> {
        let metadata = checkpoint.gguf().ok_or_else(|| Error::weights(checkpoint.path(), "is not a GGUF file"))?;
        super::gguf::tokenizer(metadata).map(Self).map_err(|message| Error::weights(checkpoint.path(), message))
    }

    /// Token ids of `text`, special tokens in it recognised and none added.
    ///
    /// # Errors
    /// The tokenizer can't encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.0.encode_fast(text, false);
        encoding.map(|e| e.get_ids().to_vec()).map_err(|e| Error::Backend(format!("tokenizer: {e}")))
    }

    /// Token ids of a text that begins by itself, with the special tokens that the model wants around it.
    ///
    /// # Errors
    /// The tokenizer can't encode the text.
    pub fn encode_whole(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.0.encode_fast(text, true);
        encoding.map(|e| e.get_ids().to_vec()).map_err(|e| Error::Backend(format!("tokenizer: {e}")))
    }

    /// The tokenizer as a `tokenizer.json` describes it.
    ///
    /// # Errors
    /// It can't be written.
    pub fn to_json(&self) -> std::result::Result<serde_json::Value, String> {
        let text = self.0.to_string(false).map_err(|e| e.to_string())?;
        serde_json::from_str(&text).map_err(|e| e.to_string())
    }

    /// The text of token ids, without special tokens if `skip_special`.
    ///
    /// # Errors
    /// The tokenizer can't decode them.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.0.decode(ids, skip_special).map_err(|e| Error::Backend(format!("tokenizer: {e}")))
    }

    /// The id of a token.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    /// Number of tokens, added ones included.
    pub fn vocabulary(&self) -> usize {
        self.0.get_vocab_size(true)
    }
}
