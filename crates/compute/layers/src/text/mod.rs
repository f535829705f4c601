//! From text to tokens: tokenizers and chat templates.

mod gguf;
mod template;
mod tokenizer;

pub use template::{ChatTemplate, TemplateOptions};
pub use tokenizer::Tokenizer;

/// Reads a file of a source: `subfolder/name` of a folder, or `name` beside a single file.
pub(crate) fn read(
    source: &runtime_base::WeightsSource,
    subfolder: Option<&str>,
    name: &str,
) -> runtime_base::Result<Option<Vec<u8>>> {
    use runtime_base::WeightsSource as S;
    let relative = subfolder.map_or_else(|| name.to_owned(), |s| format!("{s}/{name}"));
    let path = match source {
        S::Embedded(files) => return Ok(files.iter().find(|(n, _)| *n == relative).map(|(_, bytes)| bytes.to_vec())),
        S::Dir(dir) => dir.join(relative),
        S::File(file) if file.file_name().is_some_and(|n| n == name) => file.clone(),
        S::File(file) => file.with_file_name(name),
    };
    match std::fs::read(&path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(runtime_base::Error::weights(path, format!("can't be read: {e}"))),
    }
}
