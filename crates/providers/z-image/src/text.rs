//! Prompts to captions: chat template, tokenizer, and the second-last hidden states of the language model.

use std::sync::Arc;

use candle_core::DType;
use gen_core::{CancelFlag, Conditioning, Error, Result, TextEncoder};
use layers::backend;
use layers::decoder::Decoder;
use layers::text::{ChatTemplate, TemplateOptions, Tokenizer};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::Caption;

/// Tokens of a prompt with its template, at most: what the reference pipeline cuts prompts to.
pub const MAX_TOKENS: usize = 512;

/// How a prompt becomes the text that is tokenized.
pub enum Chat {
    /// The model's own template.
    Template(Box<ChatTemplate>),
    /// The turns of a conversation as Qwen3 writes them, for a tokenizer that comes without its template.
    Turns,
}

impl Chat {
    /// One user turn, thinking allowed, then the beginning of the answer.
    pub fn text(&self, prompt: &str) -> Result<String> {
        match self {
            Self::Template(template) => {
                let messages = [json!({ "role": "user", "content": prompt })];
                let options = TemplateOptions { add_generation_prompt: true, enable_thinking: Some(true), tools: None };
                template.render(&messages, options)
            }
            Self::Turns => Ok(format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")),
        }
    }
}

/// The text half of the family behind the contract's [`TextEncoder`].
pub struct ZImageTextEncoder {
    tokenizer: Arc<Tokenizer>,
    chat: Arc<Chat>,
    /// Without its last layer.
    decoder: Decoder,
    dtype: DType,
    identity: String,
    resident_bytes: u64,
}

impl ZImageTextEncoder {
    /// Puts the parts together. `decoder` lacks its last layer; `identity` tells its weights and number format.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        chat: Arc<Chat>,
        decoder: Decoder,
        dtype: DType,
        identity: String,
        resident_bytes: u64,
    ) -> Self {
        Self { tokenizer, chat, decoder, dtype, identity, resident_bytes }
    }

    /// Token ids of a prompt in its template.
    ///
    /// # Errors
    /// There are more than [`MAX_TOKENS`].
    pub fn tokens(&self, prompt: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode(&self.chat.text(prompt)?)?;
        if ids.len() > MAX_TOKENS {
            let message = format!("the prompt has {} tokens and the model takes {MAX_TOKENS}; shorten it", ids.len());
            return Err(Error::invalid("prompt", message));
        }
        Ok(ids)
    }
}

impl TextEncoder for ZImageTextEncoder {
    fn encode(&self, prompt: &str, cancel: &CancelFlag) -> Result<Conditioning> {
        let ids = self.tokens(prompt)?;
        let hidden = self.decoder.encode(&ids, cancel)?.squeeze(0).map_err(backend)?;
        let total = hidden.sqr().and_then(|x| x.sum_all()?.to_scalar::<f32>()).map_err(backend)?;
        if !total.is_finite() {
            return Err(Error::NonFinite { stage: "text encoder", step: None });
        }
        let mut identity = Sha256::new();
        identity.update(&self.identity);
        ids.iter().for_each(|id| identity.update(id.to_le_bytes()));
        let caption = Caption(hidden.to_dtype(self.dtype).map_err(backend)?);
        Ok(Conditioning::new(hex::encode(identity.finalize()), ids.len(), caption))
    }

    fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }
}
