//! Header-only checkpoints: safetensors files of true size whose data is a hole in a sparse file.
//!
//! `fixtures/headers` lists the tensors of released checkpoints (made by `reference/header_lists.py`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, json};

use crate::recipe::{Named, fixtures};

/// The tensors of a released checkpoint.
#[derive(Clone, Debug, Deserialize)]
pub struct HeaderList {
    /// The number format it is distributed in, as safetensors names it.
    pub dtype: String,
    /// Number of tensors.
    pub count: usize,
    /// Number of elements in all of them.
    pub parameters: u64,
    /// Every tensor's name and shape.
    pub tensors: Vec<Named>,
}

/// Reads `fixtures/headers/<name>.json` and writes its ranges (`layers.{0-29}.…`) out.
///
/// # Errors
/// There is no such list or it is malformed.
pub fn header_list(name: &str) -> io::Result<HeaderList> {
    let bytes = fs::read(fixtures().join("headers").join(name).with_extension("json"))?;
    let mut list: HeaderList = serde_json::from_slice(&bytes)?;
    let folded = std::mem::take(&mut list.tensors);
    for (name, shape) in folded {
        match split_range(&name) {
            Some((head, range, tail)) => {
                list.tensors.extend(range.map(|i| (format!("{head}{i}{tail}"), shape.clone())));
            }
            None => list.tensors.push((name, shape)),
        }
    }
    Ok(list)
}

/// `a.{0-3}.b` as `a.`, `0..=3`, `.b`.
fn split_range(name: &str) -> Option<(&str, std::ops::RangeInclusive<usize>, &str)> {
    let (head, rest) = name.split_once('{')?;
    let (range, tail) = rest.split_once('}')?;
    let (first, last) = range.split_once('-')?;
    Some((head, first.parse().ok()?..=last.parse().ok()?, tail))
}

/// Writes a safetensors file with `tensors` of type `dtype` (as safetensors names it) whose data takes no disk space
/// where the file system knows holes; it reads as zeros.
///
/// # Errors
/// The file can't be written or `dtype` isn't one of F64, F32, F16, BF16, I8, U8, `F8_E4M3`, `F8_E5M2`.
pub fn write_header_only(path: &Path, tensors: &[Named], dtype: &str) -> io::Result<()> {
    let width: u64 = match dtype {
        "F64" => 8,
        "F32" => 4,
        "F16" | "BF16" => 2,
        "I8" | "U8" | "F8_E4M3" | "F8_E5M2" => 1,
        other => return Err(io::Error::other(format!("no width known for dtype {other}"))),
    };
    let mut header = Map::new();
    let mut end = 0u64;
    for (name, shape) in tensors {
        let start = end;
        end += shape.iter().map(|&d| d as u64).product::<u64>() * width;
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] }));
    }
    let mut bytes = serde_json::to_vec(&header)?;
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let mut file = File::create(path)?;
    file.write_all(&(bytes.len() as u64).to_le_bytes())?;
    file.write_all(&bytes)?;
    file.set_len(8 + bytes.len() as u64 + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_complete() {
        for name in [
            "z_image_transformer_diffusers",
            "z_image_transformer_comfy",
            "qwen3_4b",
            "flux_vae_diffusers",
            "flux_vae_ldm",
        ] {
            let list = header_list(name).unwrap();
            assert_eq!(list.tensors.len(), list.count, "{name}");
            let total: usize = list.tensors.iter().map(|(_, s)| s.iter().product::<usize>()).sum();
            assert_eq!(total as u64, list.parameters, "{name}");
        }
    }

    #[test]
    fn the_header_is_valid_safetensors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse.safetensors");
        let tensors = vec![("a.weight".to_owned(), vec![3, 5]), ("b.bias".to_owned(), vec![7])];
        write_header_only(&path, &tensors, "BF16").unwrap();
        let bytes = fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.tensor("a.weight").unwrap().shape(), [3, 5]);
        assert_eq!(file.tensor("b.bias").unwrap().data().len(), 14);
        assert!(write_header_only(&path, &tensors, "Q9").is_err());
    }
}
