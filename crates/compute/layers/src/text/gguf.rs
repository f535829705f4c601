//! Tokenizers from the metadata of GGUF files: byte-pair encoding as GPT-2 has it, and SentencePiece's kind of it.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, NormalizerWrapper, SplitDelimiterBehavior, Tokenizer};
use weights::{GgufMetadata, GgufValue};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Kinds of tokens in a vocabulary.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNKNOWN: i64 = 2;

/// Makes the tokenizer that the metadata describes. Errors are sentences without the file's name.
pub(super) fn tokenizer(metadata: &GgufMetadata) -> Result<Tokenizer, String> {
    let missing = "has no tokenizer in it; use a GGUF file of the whole model, or its safetensors folder";
    let kind = metadata.text("tokenizer.ggml.model").filter(|kind| *kind != "none").ok_or(missing)?;
    let tokens = metadata.texts("tokenizer.ggml.tokens").filter(|tokens| !tokens.is_empty()).ok_or(missing)?;
    let mut vocabulary = Vocab::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        // Of equal tokens the first one counts.
        vocabulary.entry((*token).to_owned()).or_insert(id as u32);
    }
    let failed = |e: tokenizers::Error| format!("has a damaged tokenizer: {e}");
    let mut tokenizer = match kind {
        "gpt2" => byte_level(metadata, vocabulary).map_err(failed)?,
        "llama" => sentence_piece(metadata, vocabulary, &tokens).map_err(failed)?,
        other => {
            return Err(format!("has a tokenizer of the kind '{other}', which is not supported; use gpt2 or llama"));
        }
    };
    let kinds = metadata.array("tokenizer.ggml.token_type").unwrap_or_default();
    let mut added = Vec::new();
    for (token, kind) in tokens.iter().zip(kinds) {
        let special = match kind {
            GgufValue::Int(CONTROL | UNKNOWN) => true,
            GgufValue::Int(USER_DEFINED) => false,
            _ => continue,
        };
        if !token.is_empty() {
            added.push(AddedToken::from((*token).to_owned(), special).normalized(false));
        }
    }
    tokenizer.add_tokens(added).map_err(failed)?;
    let begin = metadata.count("tokenizer.ggml.bos_token_id").and_then(|id| Some((id as u32, *tokens.get(id)?)));
    let wanted = metadata.truth("tokenizer.ggml.add_bos_token").unwrap_or(kind == "llama");
    if let Some((id, begin)) = begin.filter(|(_, begin)| wanted && !begin.is_empty()) {
        let mut builder = TemplateProcessing::builder();
        builder.try_single(vec![begin, "$A"]).map_err(|e| failed(e.into()))?;
        builder.special_tokens(vec![(begin.to_owned(), id)]);
        let processor = builder.build().map_err(|e| failed(e.into()))?;
        tokenizer.with_post_processor(Some(processor));
    }
    Ok(tokenizer)
}

/// The chat template of a GGUF file, and the part of a `tokenizer_config.json` that belongs to it.
pub(super) fn template(metadata: &GgufMetadata) -> Option<(String, serde_json::Value)> {
    let text = metadata.text("tokenizer.chat_template")?.to_owned();
    let tokens = metadata.array("tokenizer.ggml.tokens").unwrap_or_default();
    let token = |name: &str| match tokens.get(metadata.count(&format!("tokenizer.ggml.{name}_token_id"))?)? {
        GgufValue::Text(token) => Some(token.as_str()),
        _ => None,
    };
    let config = serde_json::json!({"bos_token": token("bos"), "eos_token": token("eos"), "unk_token": token("unknown"),
        "pad_token": token("padding")});
    Some((text, config))
}

fn byte_level(metadata: &GgufMetadata, vocabulary: Vocab) -> tokenizers::Result<Tokenizer> {
    let merges = metadata.texts("tokenizer.ggml.merges").unwrap_or_default();
    let pair = |merge: &&str| merge.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()));
    let merges: Vec<(String, String)> = merges.iter().filter_map(pair).collect();
    let pre = metadata.text("tokenizer.ggml.pre").unwrap_or("default");
    let whole_words = ["llama-bpe", "llama3"].contains(&pre);
    let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(whole_words).build()?;
    let mut tokenizer = Tokenizer::new(bpe);
    let split = |pattern: &str| -> tokenizers::Result<PreTokenizerWrapper> {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        Ok(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into())
    };
    let bytes = |regex: bool| PreTokenizerWrapper::from(ByteLevel::new(false, true, regex));
    let steps = match pre {
        "llama-bpe" | "llama3" | "smaug-bpe" | "dbrx" => vec![split(LLAMA3)?, bytes(false)],
        "qwen2" | "deepseek-r1-qwen" => vec![split(QWEN2)?, bytes(false)],
        "tekken" => vec![split(TEKKEN)?, bytes(false)],
        "gpt-4o" | "phi-4" => vec![split(GPT4O)?, bytes(false)],
        "smollm" | "refact" | "starcoder" | "command-r" | "codeshell" | "exaone" => {
            vec![Digits::new(true).into(), bytes(true)]
        }
        // GPT-2's own, and what nobody has named.
        _ => vec![bytes(true)],
    };
    if pre == "qwen2" {
        tokenizer.with_normalizer(Some(NFC))?;
    }
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
    Ok(tokenizer)
}

/// The pairs that make a token are merged in order of its score, best first.
fn sentence_piece(metadata: &GgufMetadata, vocabulary: Vocab, tokens: &[&str]) -> tokenizers::Result<Tokenizer> {
    let scores = metadata.array("tokenizer.ggml.scores").unwrap_or_default();
    let score = |id: usize| match scores.get(id) {
        Some(GgufValue::Float(score)) => *score,
        _ => 0.0,
    };
    let mut merges: Vec<(f64, u32, (String, String))> = Vec::new();
    for (id, token) in tokens.iter().enumerate() {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(_), Some(second)) = (vocabulary.get(left), vocabulary.get(right)) {
                merges.push((score(id), *second, (left.to_owned(), right.to_owned())));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let merges = merges.into_iter().map(|(_, _, pair)| pair).collect();
    let unknown = metadata.count("tokenizer.ggml.unknown_token_id").and_then(|id| tokens.get(id));
    let mut bpe = BPE::builder().vocab_and_merges(vocabulary, merges).byte_fallback(true).fuse_unk(true);
    if let Some(unknown) = unknown {
        bpe = bpe.unk_token((*unknown).to_owned());
    }
    let mut tokenizer = Tokenizer::new(bpe.build()?);
    let prefix = metadata.truth("tokenizer.ggml.add_space_prefix").unwrap_or(true);
    let spaces: NormalizerWrapper = Replace::new(" ", "▁")?.into();
    let steps = if prefix { vec![Prepend::new("▁".into()).into(), spaces] } else { vec![spaces] };
    tokenizer.with_normalizer(Some(Normalizers::new(steps)))?;
    let mut back = vec![Replace::new("▁", " ")?.into(), ByteFallback::new().into(), Fuse::new().into()];
    if prefix {
        back.push(Strip::new(' ', 1, 0).into());
    }
    tokenizer.with_decoder(Some(Decoders::new(back)));
    Ok(tokenizer)
}
