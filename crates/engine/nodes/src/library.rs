//! The models that the user has, and which of them a node means.

use engine_graph::SelectOption;
use gen_core::{Error, LoadSpec, Result, Role, WeightsSource};
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use weights::{Identity, ModelFile, ModelsRoot, Scan};

/// The models folder as it was last looked at, and the checkpoints that settings name.
pub struct ModelLibrary {
    root: ModelsRoot,
    scan: RwLock<Option<Arc<Scan>>>,
    /// Checkpoints named by a setting such as `INLINE_ZIMAGE_MODEL`, by family.
    overrides: Vec<(&'static str, PathBuf)>,
}

/// A family's checkpoint with the parts that it needs.
#[derive(Debug, Clone)]
pub struct Choice {
    /// How to load it.
    pub spec: LoadSpec,
    /// Its name for people and takes.
    pub name: String,
}

/// The parts that a denoiser needs from elsewhere when it is a single file.
#[derive(Debug, Clone, Copy)]
pub struct FamilyParts {
    /// The family, as `weights::identify` names it.
    pub family: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// The family of its text encoder.
    pub text_encoder: &'static str,
    /// The family and variant of its VAE.
    pub vae: (&'static str, &'static str),
    /// The setting that names a checkpoint.
    pub setting: &'static str,
}

/// A component that a node loads by itself.
pub struct ComponentKind<'a> {
    /// Its role.
    pub role: Role,
    /// Its folder in the models folder.
    pub category: &'a str,
    /// Its name for people.
    pub what: &'a str,
    /// The families that it may belong to.
    pub families: &'a [FamilyParts],
}

impl ComponentKind<'_> {
    /// The family whose component of this role a file holds.
    fn parts(&self, file: &ModelFile) -> Option<&FamilyParts> {
        let found = file.content.as_ref().ok()?;
        let fits = |parts: &&FamilyParts| {
            found.iter().filter(|identity| identity.role == Some(self.role)).any(|identity| match self.role {
                Role::TextEncoder => identity.family == parts.text_encoder,
                Role::Vae => (identity.family, identity.variant.as_deref()) == (parts.vae.0, Some(parts.vae.1)),
                _ => identity.family == parts.family,
            })
        };
        self.families.iter().find(fits)
    }
}

impl ModelLibrary {
    /// The library over the models folder `dir`, which need not exist.
    pub fn new(dir: impl Into<PathBuf>, overrides: Vec<(&'static str, PathBuf)>) -> Self {
        Self { root: ModelsRoot::new(dir), scan: RwLock::default(), overrides }
    }

    /// The models folder.
    pub fn dir(&self) -> &Path {
        self.root.dir()
    }

    /// The last look at the folder; the first call looks.
    pub fn scan(&self) -> Arc<Scan> {
        if let Some(scan) = self.scan.read().unwrap_or_else(std::sync::PoisonError::into_inner).as_ref() {
            return Arc::clone(scan);
        }
        self.rescan()
    }

    /// Looks at the folder again. Cheap when nothing changed.
    pub fn rescan(&self) -> Arc<Scan> {
        let scan = Arc::new(self.root.scan());
        *self.scan.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Arc::clone(&scan));
        scan
    }

    /// Bytes that change with the models that nodes can see.
    pub fn digest(&self) -> Vec<u8> {
        let mut digest = self.scan().digest.to_vec();
        for (family, path) in &self.overrides {
            digest.extend(family.as_bytes());
            digest.extend(path.as_os_str().as_encoded_bytes());
        }
        digest
    }

    /// The options that a select with `optionsFrom: category` gets.
    pub fn options(&self, category: &str) -> Vec<SelectOption> {
        let label = |file: &ModelFile| match &file.content {
            Ok(_) => file.name.clone(),
            Err(_) => format!("{} (unreadable)", file.name),
        };
        let scan = self.scan();
        scan.category(category).map(|file| SelectOption { value: file.name.clone(), label: label(file) }).collect()
    }

    /// Whether there is a checkpoint that the family's node would use by itself.
    pub fn has(&self, parts: &FamilyParts) -> bool {
        self.overrides.iter().any(|(family, _)| *family == parts.family)
            || self.candidates(&self.scan(), parts).next().is_some()
    }

    fn candidates<'a>(&self, scan: &'a Scan, parts: &'a FamilyParts) -> impl Iterator<Item = &'a ModelFile> {
        let folders = ["diffusion_models", "checkpoints"];
        scan.find(Role::Denoiser, parts.family).filter(move |file| folders.contains(&file.category))
    }

    /// The checkpoint that a node means: the file called `name`, or with an empty name the setting's, or the only one.
    ///
    /// # Errors
    /// There is none or more than one, the named one is something else, or a part that it needs isn't there. The message
    /// says what was looked for and where, in terms of the models folder.
    pub fn choose(&self, parts: &FamilyParts, name: &str) -> Result<Choice> {
        let scan = self.scan();
        if name.is_empty()
            && let Some((_, path)) = self.overrides.iter().find(|(family, _)| *family == parts.family)
        {
            let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let source = WeightsSource::from_path(path);
            return match &source {
                WeightsSource::Dir(_) => Ok(Choice { spec: LoadSpec::new(source), name: file }),
                _ => self.complete(&scan, parts, source, file),
            };
        }
        let file = if name.is_empty() { self.only(&scan, parts)? } else { named(&scan, parts, name)? };
        if file.is_snapshot {
            return Ok(Choice { spec: LoadSpec::new(file.source()), name: file.name.clone() });
        }
        self.complete(&scan, parts, file.source(), file.name.clone())
    }

    /// The component of `role` that the file called `name` of `category` holds; with an empty name the setting's
    /// checkpoint, the only such file of the category, or the only one anywhere. Gives the family that it belongs to.
    ///
    /// # Errors
    /// There is none or more than one, or the named one holds something else. The message says what was looked for.
    pub fn component(&self, wanted: &ComponentKind<'_>, name: &str) -> Result<(Choice, FamilyParts)> {
        let &ComponentKind { role, category, what, .. } = wanted;
        let scan = self.scan();
        if name.is_empty() {
            for (family, path) in &self.overrides {
                let source = WeightsSource::from_path(path);
                let Some(parts) = wanted.families.iter().find(|parts| parts.family == *family) else { continue };
                // A folder is a whole model; a file that a setting names is its network.
                if role == Role::Denoiser || matches!(source, WeightsSource::Dir(_)) {
                    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                    return Ok((Choice { spec: LoadSpec::new(source).with_only(role), name }, *parts));
                }
            }
        }
        let usable = |file: &&ModelFile| wanted.parts(file).is_some();
        let own: Vec<&ModelFile> = scan.category(category).filter(usable).collect();
        let file = if name.is_empty() {
            let all = || scan.files.iter().filter(usable).collect();
            let candidates = if own.is_empty() { all() } else { own };
            match candidates.as_slice() {
                [one] => *one,
                [] => {
                    let message = format!("no {what} was found in the models folder; put one into {category}/");
                    return Err(missing(role, message));
                }
                several => {
                    let names: Vec<&str> = several.iter().map(|f| f.name.as_str()).collect();
                    let message = format!("there are several files with a {what}; choose one of {}", names.join(", "));
                    return Err(Error::invalid("file", message));
                }
            }
        } else {
            own.into_iter().find(|file| file.name == name).ok_or_else(|| {
                let seen = scan.category(category).find(|file| file.name == name).map(describe);
                let message = match seen {
                    Some(file) => format!("{file} holds no {what} that a node could use"),
                    None => format!("'{name}' is not in {category}/ of the models folder"),
                };
                Error::invalid("file", message)
            })?
        };
        let parts = *wanted.parts(file).ok_or_else(|| missing(role, format!("{} holds no {what}", file.name)))?;
        let mut spec = LoadSpec::new(file.source()).with_only(role);
        if !file.is_snapshot {
            spec = spec.with_component(role, file.source());
            if role == Role::TextEncoder {
                let path = tokenizer(&scan, &file.path).ok_or_else(|| {
                    missing(role, format!("{} also needs its tokenizer.json next to it in {category}/", file.name))
                })?;
                spec = spec.with_component(Role::Tokenizer, WeightsSource::File(path));
            }
        }
        Ok((Choice { spec, name: file.name.clone() }, parts))
    }

    fn only<'a>(&self, scan: &'a Scan, parts: &'a FamilyParts) -> Result<&'a ModelFile> {
        let found: Vec<&ModelFile> = self.candidates(scan, parts).collect();
        match found.as_slice() {
            [one] => Ok(one),
            [] => {
                let others: Vec<String> = scan.category("diffusion_models").map(describe).collect();
                let seen = if others.is_empty() {
                    "which is empty".to_owned()
                } else {
                    format!("which holds {}", others.join(", "))
                };
                let setting = parts.setting;
                Err(missing(
                    Role::Denoiser,
                    format!(
                        "no {} checkpoint was found in diffusion_models/ or checkpoints/ of the models folder, {seen}; put one there or set {setting}",
                        parts.title
                    ),
                ))
            }
            several => {
                let names: Vec<&str> = several.iter().map(|f| f.name.as_str()).collect();
                Err(Error::invalid(
                    "model",
                    format!("there are several {} checkpoints; choose one of {}", parts.title, names.join(", ")),
                ))
            }
        }
    }

    /// Finds the parts that a single file needs.
    fn complete(&self, scan: &Scan, parts: &FamilyParts, source: WeightsSource, name: String) -> Result<Choice> {
        let mut lacking = Vec::new();
        let bundled = |role: Role| {
            let inside = scan.files.iter().find(|f| f.path == source.path());
            inside.is_some_and(|f| f.content.as_ref().is_ok_and(|c| c.iter().any(|i| i.role == Some(role))))
        };
        let mut spec = LoadSpec::new(source.clone());
        let (vae_family, vae_variant) = parts.vae;
        let is_variant = |i: &Identity| i.variant.as_deref() == Some(vae_variant);
        let vae = scan
            .find(Role::Vae, vae_family)
            .find(|f| !f.is_snapshot && f.content.as_ref().is_ok_and(|c| c.iter().any(is_variant)));
        match vae {
            Some(file) => spec = spec.with_component(Role::Vae, file.source()),
            None if bundled(Role::Vae) => {}
            None => lacking.push(format!("a {vae_variant} VAE in vae/")),
        }
        let encoder = scan.find(Role::TextEncoder, parts.text_encoder).find(|f| !f.is_snapshot);
        match encoder {
            Some(file) => {
                spec = spec.with_component(Role::TextEncoder, file.source());
                match tokenizer(scan, &file.path) {
                    Some(path) => spec = spec.with_component(Role::Tokenizer, WeightsSource::File(path)),
                    None => lacking.push(format!("its tokenizer.json next to {} in text_encoders/", file.name)),
                }
            }
            None if bundled(Role::TextEncoder) => {}
            None => lacking.push(format!("a {} text encoder in text_encoders/", parts.text_encoder)),
        }
        if lacking.is_empty() {
            return Ok(Choice { spec, name });
        }
        let role = if lacking[0].contains("VAE") { Role::Vae } else { Role::TextEncoder };
        let list = lacking.join(" and ");
        Err(missing(role, format!("{name} also needs {list} of the models folder; put it there, whatever its name")))
    }
}

fn missing(role: Role, message: String) -> Error {
    Error::MissingComponent { role, path: PathBuf::new(), message }
}

fn describe(file: &ModelFile) -> String {
    match &file.content {
        Ok(found) => {
            let kinds: Vec<&str> = found.iter().map(|i| i.family).collect();
            format!("{} ({})", file.name, kinds.join(", "))
        }
        Err(problem) => format!("{} (unusable: {problem})", file.name),
    }
}

fn named<'a>(scan: &'a Scan, parts: &FamilyParts, name: &str) -> Result<&'a ModelFile> {
    let file =
        scan.files.iter().find(|f| f.name == name && (f.category == "diffusion_models" || f.category == "checkpoints"));
    let file = file
        .ok_or_else(|| Error::invalid("model", format!("'{name}' is not in diffusion_models/ of the models folder")))?;
    if file.has(Role::Denoiser, parts.family) {
        return Ok(file);
    }
    Err(Error::invalid("model", format!("{} is not a {} checkpoint", describe(file), parts.title)))
}

/// The tokenizer that lies nearest to a text encoder: in its folder or a folder of its name, else the only one there is.
fn tokenizer(scan: &Scan, encoder: &Path) -> Option<PathBuf> {
    let near = [encoder.to_owned(), encoder.with_extension(""), encoder.with_file_name("tokenizer")];
    let beside =
        |t: &&PathBuf| t.parent().is_some_and(|dir| near.iter().any(|n| n == dir) || Some(dir) == encoder.parent());
    if let Some(found) = scan.tokenizers.iter().find(beside) {
        return Some(found.clone());
    }
    match scan.tokenizers.as_slice() {
        [one] => Some(one.clone()),
        _ => None,
    }
}
