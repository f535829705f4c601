//! Checkpoints computed from tensor names and shapes.
//!
//! A fixture stores a tensor list and the reference implementation's outputs, no weights: this module writes the
//! checkpoint that belongs to them. `reference/README.md` defines the recipe, `reference/recipe.py` is its twin and
//! `fixtures/recipe.json` pins both to the same bits.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::{Dtype, View};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// A tensor's name and shape, written `["name", [2, 3]]` in the fixtures.
pub type Named = (String, Vec<usize>);

/// FNV-1a over `bytes`, 64 bits.
#[must_use]
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// Output `index` of splitmix64 seeded with `seed` (Steele, Lea and Flood 2014), as a number in `[-1, 1)` with 24 bits.
fn uniform(seed: u64, index: u64) -> f64 {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// The values, row-major, of the tensor called `name`.
///
/// Biases are `0.1 u`, other tensors of rank 0 or 1 (norm weights) `1 + 0.1 u` and the rest `sqrt(3 / fan_in) u`, with
/// `u` uniform in `[-1, 1)` and `fan_in` the product of `shape[1..]`; computed in f64, rounded once.
#[must_use]
pub fn tensor(name: &str, shape: &[usize]) -> Vec<f32> {
    let seed = fnv1a64(name.as_bytes());
    let (offset, scale) = if name.ends_with("bias") {
        (0.0, 0.1)
    } else if shape.len() < 2 {
        (1.0, 0.1)
    } else {
        (0.0, (3.0 / shape[1..].iter().product::<usize>() as f64).sqrt())
    };
    (0..shape.iter().product::<usize>() as u64).map(|i| (offset + uniform(seed, i) * scale) as f32).collect()
}

/// A tensor of a checkpoint in another naming: the recipe's tensors `from`, joined along the first dimension.
///
/// One part under the same name is the plain case; a fused `qkv` has three; `shape` may add dimensions of size 1.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Mapped {
    /// Name in the file.
    pub name: String,
    /// Shape in the file.
    pub shape: Vec<usize>,
    /// The recipe's tensors whose values follow each other in it.
    pub from: Vec<Named>,
}

impl From<Named> for Mapped {
    fn from((name, shape): Named) -> Self {
        Self { from: vec![(name.clone(), shape.clone())], name, shape }
    }
}

/// The number formats that the recipe is written in, rounded to nearest, ties to even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Format {
    /// Little-endian bytes of `values`.
    #[must_use]
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Self::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            Self::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        }
    }
}

/// A tensor whose bytes are computed when the writer asks for them.
struct Lazy<'a> {
    mapped: &'a Mapped,
    format: Format,
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        match self.format {
            Format::F32 => Dtype::F32,
            Format::F16 => Dtype::F16,
            Format::Bf16 => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.mapped.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = self.mapped.from.iter().flat_map(|(name, shape)| self.format.encode(&tensor(name, shape)));
        Cow::Owned(bytes.collect())
    }

    fn data_len(&self) -> usize {
        let width = if self.format == Format::F32 { 4 } else { 2 };
        self.mapped.shape.iter().product::<usize>() * width
    }
}

/// Writes `tensors` to one safetensors file.
///
/// # Errors
/// The file can't be written, or a tensor's parts don't add up to its shape.
pub fn write_safetensors(path: &Path, tensors: &[Mapped], format: Format) -> io::Result<()> {
    for t in tensors {
        let parts: usize = t.from.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        if parts != t.shape.iter().product::<usize>() {
            return Err(io::Error::other(format!("{}: parts hold {parts} elements, shape is {:?}", t.name, t.shape)));
        }
    }
    let views = tensors.iter().map(|mapped| (mapped.name.as_str(), Lazy { mapped, format }));
    safetensors::serialize_to_file(views, None, path).map_err(io::Error::other)
}

/// Writes `tensors` to `shards` files in `dir` with the index that diffusers and transformers name after `stem`
/// (`model` or `diffusion_pytorch_model`); one shard has neither index nor number.
///
/// # Errors
/// A file can't be written.
pub fn write_sharded(dir: &Path, stem: &str, tensors: &[Mapped], format: Format, shards: usize) -> io::Result<()> {
    if shards <= 1 {
        return write_safetensors(&dir.join(format!("{stem}.safetensors")), tensors, format);
    }
    let mut weight_map = BTreeMap::new();
    for (i, part) in tensors.chunks(tensors.len().div_ceil(shards)).enumerate() {
        let file = format!("{stem}-{:05}-of-{shards:05}.safetensors", i + 1);
        write_safetensors(&dir.join(&file), part, format)?;
        weight_map.extend(part.iter().map(|t| (t.name.clone(), file.clone())));
    }
    let index = json!({ "metadata": {}, "weight_map": weight_map });
    fs::write(dir.join(format!("{stem}.safetensors.index.json")), index.to_string())
}

/// The repository's `fixtures` folder.
#[must_use]
pub fn fixtures() -> PathBuf {
    repository().join("fixtures")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// Reads a tensor list: a JSON array of `["name", [shape]]`.
///
/// # Errors
/// The file can't be read or is something else.
pub fn read_tensor_list(path: &Path) -> io::Result<Vec<Named>> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Reads a fixture's `comfy_map.json`: the tensors of the original single files by component (`transformer`,
/// `text_encoder`, `vae`).
///
/// # Errors
/// The file can't be read or is something else.
pub fn read_comfy_map(fixture: &Path) -> io::Result<BTreeMap<String, Vec<Mapped>>> {
    Ok(serde_json::from_slice(&fs::read(fixture.join("comfy_map.json"))?)?)
}

/// Writes the checkpoint folder that a fixture describes: its configs, weights for each `tensors.json` in it, and the
/// demo model's tokenizer, which every tiny model shares.
///
/// # Errors
/// The fixture is incomplete or `out` can't be written.
pub fn write_folder(fixture: &Path, out: &Path, format: Format, shards: usize) -> io::Result<()> {
    fs::create_dir_all(out)?;
    let pipeline = fixture.join("model_index.json").exists();
    if pipeline {
        fs::copy(fixture.join("model_index.json"), out.join("model_index.json"))?;
        for entry in fs::read_dir(fixture)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                write_component(&entry.path(), &out.join(entry.file_name()), format, shards)?;
            }
        }
    } else {
        write_component(fixture, out, format, shards)?;
    }
    let tokenizer = if pipeline { out.join("tokenizer") } else { out.to_path_buf() };
    fs::create_dir_all(&tokenizer)?;
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(repository().join("assets/demo/tokenizer").join(file), tokenizer.join(file))?;
    }
    Ok(())
}

/// One folder of a pipeline, or a whole language model: configs as they are and weights where it lists tensors.
fn write_component(fixture: &Path, out: &Path, format: Format, shards: usize) -> io::Result<()> {
    fs::create_dir_all(out)?;
    for file in ["config.json", "generation_config.json", "scheduler_config.json"] {
        if fixture.join(file).exists() {
            fs::copy(fixture.join(file), out.join(file))?;
        }
    }
    let list = fixture.join("tensors.json");
    if !list.exists() {
        return Ok(());
    }
    let tensors: Vec<Mapped> = read_tensor_list(&list)?.into_iter().map(Mapped::from).collect();
    let config: serde_json::Value = serde_json::from_slice(&fs::read(fixture.join("config.json"))?)?;
    let stem = if config.get("model_type").is_some() { "model" } else { "diffusion_pytorch_model" };
    write_sharded(out, stem, &tensors, format, shards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Check {
        name: String,
        shape: Vec<usize>,
        seed: String,
        first_bits: Vec<u32>,
        last_bits: u32,
        fnv1a64_of_bytes: BTreeMap<String, String>,
    }

    #[test]
    fn bits_equal_the_python_twin() {
        let checks: Vec<Check> = serde_json::from_slice(&fs::read(fixtures().join("recipe.json")).unwrap()).unwrap();
        assert!(checks.len() >= 8);
        for c in checks {
            assert_eq!(format!("{:016x}", fnv1a64(c.name.as_bytes())), c.seed, "{}", c.name);
            let values = tensor(&c.name, &c.shape);
            let bits: Vec<u32> = values.iter().map(|v| v.to_bits()).collect();
            assert_eq!(bits[..c.first_bits.len()], c.first_bits, "{}", c.name);
            assert_eq!(bits.last(), Some(&c.last_bits), "{}", c.name);
            for (format, key) in [(Format::F32, "f32"), (Format::F16, "f16"), (Format::Bf16, "bf16")] {
                let hash = fnv1a64(&format.encode(&values));
                assert_eq!(format!("{hash:016x}"), c.fnv1a64_of_bytes[key], "{} as {key}", c.name);
            }
        }
    }

    #[test]
    fn a_fused_tensor_is_its_parts_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let parts = [("q.weight", [2, 3]), ("k.weight", [1, 3])].map(|(n, s)| (n.to_owned(), s.to_vec()));
        let fused = Mapped { name: "qk.weight".into(), shape: vec![3, 3], from: parts.to_vec() };
        let path = dir.path().join("fused.safetensors");
        write_safetensors(&path, std::slice::from_ref(&fused), Format::F32).unwrap();
        let bytes = fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let expected: Vec<f32> = parts.iter().flat_map(|(n, s)| tensor(n, s)).collect();
        assert_eq!(file.tensor("qk.weight").unwrap().data(), Format::F32.encode(&expected));

        let wrong = Mapped { shape: vec![4, 3], ..fused };
        assert!(write_safetensors(&path, &[wrong], Format::F32).is_err());
    }

    #[test]
    fn the_tiny_pipeline_can_be_written_in_both_layouts() {
        let fixture = fixtures().join("z-image-tiny");
        let dir = tempfile::tempdir().unwrap();
        write_folder(&fixture, dir.path(), Format::Bf16, 1).unwrap();
        for file in ["transformer/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "text_encoder/model"] {
            assert!(dir.path().join(file).with_extension("safetensors").exists(), "{file}");
        }
        assert!(dir.path().join("tokenizer/tokenizer.json").exists());
        assert!(dir.path().join("scheduler/scheduler_config.json").exists());
        for (part, tensors) in read_comfy_map(&fixture).unwrap() {
            let path = dir.path().join(format!("{part}.safetensors"));
            write_safetensors(&path, &tensors, Format::Bf16).unwrap();
            let elements = |list: &[Named]| -> usize { list.iter().map(|(_, s)| s.iter().product::<usize>()).sum() };
            let diffusers = read_tensor_list(&fixture.join(&part).join("tensors.json")).unwrap();
            let original: Vec<Named> = tensors.into_iter().map(|t| (t.name, t.shape)).collect();
            assert_eq!(elements(&original), elements(&diffusers), "{part}");
        }
    }

    #[test]
    fn shards_hold_every_tensor_once() {
        let dir = tempfile::tempdir().unwrap();
        let tensors: Vec<Mapped> = (0..5).map(|i| (format!("layers.{i}.weight"), vec![2, 2]).into()).collect();
        write_sharded(dir.path(), "model", &tensors, Format::Bf16, 2).unwrap();
        let index: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.path().join("model.safetensors.index.json")).unwrap()).unwrap();
        for t in &tensors {
            let file = index["weight_map"][&t.name].as_str().unwrap();
            let bytes = fs::read(dir.path().join(file)).unwrap();
            assert!(safetensors::SafeTensors::deserialize(&bytes).unwrap().tensor(&t.name).is_ok());
        }
    }
}
