//! Where the components of a load specification are.

use std::path::{Path, PathBuf};

use gen_core::{Error, LoadSpec, Result, Role, WeightsSource};
use serde_json::Value;
use weights::{Checkpoint, identify, load_config};

/// A component: a source, and its folder below it if the source is a whole model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    pub(crate) source: WeightsSource,
    pub(crate) folder: Option<&'static str>,
}

impl Place {
    fn new(source: &WeightsSource, folder: Option<&'static str>) -> Self {
        Self { source: source.clone(), folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        match self.source {
            WeightsSource::File(_) => self.source.path().to_owned(),
            _ => self.source.path().join(self.folder.unwrap_or("")),
        }
    }

    /// Whether a file of that name is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.source {
            WeightsSource::Embedded(_) => self.embedded(name).is_some(),
            _ => self.file(name).is_file(),
        }
    }

    /// Where a file of that name would be: in the folder, beside a single file, or that file itself.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        match &self.source {
            WeightsSource::File(file) if file.file_name().is_some_and(|own| own == name) => file.clone(),
            WeightsSource::File(file) => file.with_file_name(name),
            _ => self.source.path().join(self.relative(name)),
        }
    }

    /// The bytes of a file that is part of the program.
    pub(crate) fn embedded(&self, name: &str) -> Option<&'static [u8]> {
        let WeightsSource::Embedded(files) = &self.source else { return None };
        let relative = self.relative(name);
        files.iter().find(|(file, _)| *file == relative).map(|(_, bytes)| *bytes)
    }

    fn relative(&self, name: &str) -> String {
        self.folder.map_or_else(|| name.to_owned(), |folder| format!("{folder}/{name}"))
    }

    /// Its `config.json`, if there is one in which `key` starts with `value`; beside a single file may lie that of
    /// another.
    pub(crate) fn config(&self, key: &str, value: &str) -> Result<Option<Value>> {
        let config = load_config(&self.source, &self.relative("config.json"))?;
        let says = |config: &Value| config.get(key).and_then(Value::as_str).is_some_and(|v| v.starts_with(value));
        Ok(config.filter(says))
    }

    /// A JSON file of it.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Value>> {
        load_config(&self.source, &self.relative(name))
    }
}

/// `source`, or the folder below it that is called `folder` if there is one.
fn below(source: &WeightsSource, folder: &'static str) -> Place {
    let nested = match source {
        WeightsSource::Dir(dir) => dir.join(folder).is_dir(),
        WeightsSource::Embedded(files) => {
            files.iter().any(|(name, _)| name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
        }
        WeightsSource::File(_) => false,
    };
    Place::new(source, nested.then_some(folder))
}

/// A weights component: the one that was given for `role`, else its `folder` in the model's own folder.
pub(crate) fn component(spec: &LoadSpec, role: Role, folder: &'static str) -> Result<Place> {
    if let Some(source) = spec.component(role) {
        return Ok(below(source, folder));
    }
    let place = below(&spec.source, folder);
    // A single file, or a folder of nothing but shards, is the network itself, or all of the model.
    if place.folder.is_some() || role == Role::Denoiser || holds(&spec.source, role) {
        return Ok(place);
    }
    let message = match spec.source {
        WeightsSource::File(_) => format!("a single file holds the {} alone; say where the {role} is", Role::Denoiser),
        _ => format!("there is no folder '{folder}'; copy it from the model, or say where the {role} is"),
    };
    Err(Error::MissingComponent { role, path: spec.source.path().join(folder), message })
}

/// Whether a single file has the component of `role` beside others.
fn holds(source: &WeightsSource, role: Role) -> bool {
    let WeightsSource::File(file) = source else { return false };
    // A file that can't be opened says so where it is opened for the network.
    Checkpoint::open(file).is_ok_and(|checkpoint| identify(&checkpoint).iter().any(|found| found.role == Some(role)))
}

/// The folder with `tokenizer.json`: what was given, the model's own `tokenizer` folder, or near the text encoder.
pub(crate) fn tokenizer(spec: &LoadSpec, text_encoder: &Place) -> Result<Place> {
    const FOLDER: &str = "tokenizer";
    let mut places = Vec::new();
    if let Some(source) = spec.component(Role::Tokenizer) {
        places.push(below(source, FOLDER));
    } else {
        places.push(below(&spec.source, FOLDER));
        places.push(below(&text_encoder.source, FOLDER));
        places.push(text_encoder.clone());
        if let WeightsSource::File(file) = &text_encoder.source {
            // Beside a single file: a folder of its name, or one called `tokenizer`.
            let folders = [file.with_extension(""), file.with_file_name(FOLDER)];
            places.extend(folders.map(|folder| Place { source: WeightsSource::Dir(folder), folder: None }));
        }
    }
    if let Some(place) = places.iter().find(|place| place.has("tokenizer.json")) {
        return Ok(place.clone());
    }
    let folder = |place: &Place| match &place.source {
        WeightsSource::File(file) => file.parent().unwrap_or(Path::new(".")).display().to_string(),
        _ => place.path().display().to_string(),
    };
    let mut looked: Vec<String> = places.iter().map(folder).collect();
    looked.dedup();
    let message = format!(
        "no tokenizer.json in {}; put tokenizer.json and tokenizer_config.json of the model there",
        looked.join(" or ")
    );
    let path = places.last().map_or_else(PathBuf::new, Place::path);
    Err(Error::MissingComponent { role: Role::Tokenizer, path, message })
}
