//! One function for each role: which nodes of ours do the same.

use engine_graph::{Edge, Node, PortKind};

use super::{Fail, Mapped, Mapper, Output};
use crate::classes::{CONTROL, Role};
use crate::error::shorten;
use crate::sampling::{self, Settings};
use crate::ui::control_note;

/// Endings of files that are never loaded.
const PICKLES: [&str; 5] = [".ckpt", ".pt", ".pth", ".bin", ".pkl"];

impl Output {
    fn new(from: impl Into<String>, output: &str, kind: PortKind) -> Self {
        Self { edge: Edge::new(from, output), kind, shift: None, is_made: false }
    }
}

impl Mapped {
    fn new(node: Node, output: &str, kind: PortKind) -> Self {
        let outputs = vec![Output::new(node.id.clone(), output, kind)];
        Self { nodes: vec![node], outputs, notes: Vec::new() }
    }

    fn output(output: Output) -> Self {
        Self { outputs: vec![output], ..Self::default() }
    }
}

/// Lets nodes before this one be mapped first, so that all obstacles are found, before its own problems are reported.
fn after_needs<T>(result: Result<T, Fail>) -> Result<Result<T, Fail>, Fail> {
    match result {
        Err(needs @ Fail::Needs(_)) => Err(needs),
        other => Ok(other),
    }
}

fn wired(node: Node, port: &str, output: &Output) -> Node {
    node.input(port, output.edge.from.clone(), output.edge.output.clone())
}

impl Mapper<'_, '_> {
    pub(super) fn map_role(&mut self, node: usize, role: Role) -> Result<Mapped, Fail> {
        match role {
            Role::Checkpoint => self.checkpoint(node),
            Role::DiffusionModel => {
                self.loader(node, &["unet_name", "model_name"], "load/diffusion-model", "model", PortKind::Model)
            }
            Role::TextEncoder => {
                self.loader(node, &["clip_name"], "load/text-encoder", "text_encoder", PortKind::TextEncoder)
            }
            Role::Vae => self.loader(node, &["vae_name"], "load/vae", "vae", PortKind::Vae),
            Role::Shift => self.shift(node),
            Role::EncodeText => self.encode_text(node),
            Role::ZeroOut => Err(Fail::Reason(
                "zeroed conditioning has a counterpart only as the negative of a sampler at cfg 1, which doesn't use it"
                    .to_owned(),
            )),
            Role::EmptyLatent => self.empty_latent(node),
            Role::Sampler | Role::SamplerAdvanced => self.sample(node, role),
            Role::Decode => {
                let mut mapped = self.through_vae(node, "vae/decode", ("samples", "latent", PortKind::Latent))?;
                let mut output = Output::new(self.id(node), "image", PortKind::Image);
                output.is_made = true;
                mapped.outputs.push(output);
                Ok(mapped)
            }
            Role::Encode => {
                let mut mapped = self.through_vae(node, "vae/encode", ("pixels", "image", PortKind::Image))?;
                mapped.outputs.push(Output::new(self.id(node), "latent", PortKind::Latent));
                Ok(mapped)
            }
            Role::LoadImage => self.load_image(node),
            Role::Save | Role::Preview => {
                let [picture] = self.wires(node, [("images", PortKind::Image)])?;
                Ok(Mapped::output(picture))
            }
            Role::Constant => self.constant_text(node),
            // Neither is ever the working end of a link.
            Role::Reroute | Role::Note => Ok(Mapped::default()),
        }
    }

    fn id(&self, node: usize) -> String {
        self.workflow.nodes[node].id.clone()
    }

    fn label(&self, node: usize) -> String {
        self.workflow.nodes[node].label()
    }

    /// The file that a loader names, the folders of Windows written our way.
    fn file(&mut self, node: usize, names: &[&str]) -> Result<String, Fail> {
        let mut name = names[0];
        for other in &names[1..] {
            if self.value(node, name)?.is_none() {
                name = other;
            }
        }
        let file = self.text(node, name)?.replace('\\', "/");
        if PICKLES.iter().any(|ending| file.to_ascii_lowercase().ends_with(ending)) {
            let file = shorten(&file);
            return Err(Fail::Reason(format!("{file} is a pickle, which is never loaded; convert it to safetensors")));
        }
        Ok(file)
    }

    fn loader(&mut self, node: usize, names: &[&str], ours: &str, port: &str, kind: PortKind) -> Result<Mapped, Fail> {
        let file = self.file(node, names)?;
        let mut mapped = Mapped::new(Node::new(self.id(node), ours).param("file", file), port, kind);
        for placement in ["weight_dtype", "device"] {
            if let Ok(Some(value)) = self.value(node, placement)
                && let Some(value) = value.as_str().filter(|value| *value != "default")
            {
                mapped.notes.push(format!(
                    "{}: {placement} {} isn't carried over; the device policy decides it",
                    self.label(node),
                    shorten(value)
                ));
            }
        }
        Ok(mapped)
    }

    fn checkpoint(&mut self, node: usize) -> Result<Mapped, Fail> {
        let file = self.file(node, &["ckpt_name"])?;
        let id = self.id(node);
        let (encoder, vae) = (self.beside(&id, "text-encoder"), self.beside(&id, "vae"));
        let outputs = vec![
            Output::new(id.clone(), "model", PortKind::Model),
            Output::new(encoder.clone(), "text_encoder", PortKind::TextEncoder),
            Output::new(vae.clone(), "vae", PortKind::Vae),
        ];
        let note = format!(
            "{}: {} is asked for as diffusion model, as text encoder and as VAE; choose other files where the models \
             root doesn't offer it",
            self.label(node),
            shorten(&file)
        );
        let nodes = [(id, "load/diffusion-model"), (encoder, "load/text-encoder"), (vae, "load/vae")];
        let nodes = nodes.into_iter().map(|(id, ours)| Node::new(id, ours).param("file", file.as_str())).collect();
        Ok(Mapped { nodes, outputs, notes: vec![note] })
    }

    /// The shift belongs to the schedule, so it travels with the model to the sampler. The last one counts.
    fn shift(&mut self, node: usize) -> Result<Mapped, Fail> {
        let wires = after_needs(self.wires(node, [("model", PortKind::Model)]))?;
        let shift = self.number(node, "shift")?;
        if shift <= 0.0 {
            return Err(Fail::Reason(format!("shift must be above 0, not {shift}")));
        }
        let [model] = wires?;
        Ok(Mapped::output(Output { shift: Some(shift), ..model }))
    }

    fn encode_text(&mut self, node: usize) -> Result<Mapped, Fail> {
        let id = self.id(node);
        let encode = Node::new(id.as_str(), "encode/text");
        let clip = ("clip", PortKind::TextEncoder);
        if self.is_wired(node, "text")? {
            let [encoder, prompt] = self.wires(node, [clip, ("text", PortKind::Text)])?;
            let encode = wired(wired(encode, "text_encoder", &encoder), "prompt", &prompt);
            return Ok(Mapped::new(encode, "conditioning", PortKind::Conditioning));
        }
        let encoder = after_needs(self.wires(node, [clip]))?;
        let text = self.text(node, "text")?;
        let [encoder] = encoder?;
        let source = Node::new(self.beside(&id, "text"), "input/text").param("text", text);
        let encode = wired(encode, "text_encoder", &encoder).input("prompt", source.id.as_str(), "text");
        let mut mapped = Mapped::new(encode, "conditioning", PortKind::Conditioning);
        mapped.nodes.insert(0, source);
        mapped.notes.extend(prompt_syntax(text).map(|syntax| self.syntax_note(node, syntax)));
        Ok(mapped)
    }

    fn constant_text(&mut self, node: usize) -> Result<Mapped, Fail> {
        let text = self.workflow.constant(node).and_then(|value| value.as_str());
        let text = text.ok_or_else(|| Fail::Reason("it holds no text".to_owned()))?;
        let mut mapped =
            Mapped::new(Node::new(self.id(node), "input/text").param("text", text), "text", PortKind::Text);
        mapped.notes.extend(prompt_syntax(text).map(|syntax| self.syntax_note(node, syntax)));
        Ok(mapped)
    }

    fn syntax_note(&self, node: usize, syntax: &str) -> String {
        format!("{}: {syntax} means nothing to a text encoder here; it is plain text", self.label(node))
    }

    fn empty_latent(&mut self, node: usize) -> Result<Mapped, Fail> {
        let (width, height) = (self.count(node, "width")?, self.count(node, "height")?);
        let batch = match self.value(node, "batch_size")? {
            Some(_) => self.count(node, "batch_size")?,
            None => 1,
        };
        let latent = Node::new(self.id(node), "latent/empty")
            .param("width", width)
            .param("height", height)
            .param("batch", batch);
        let mut mapped = Mapped::new(latent, "latent", PortKind::Latent);
        if batch > 1 {
            mapped.notes.push(format!(
                "{}: pictures after the first of a batch may start from other noise than in ComfyUI",
                self.label(node)
            ));
        }
        Ok(mapped)
    }

    fn sample(&mut self, node: usize, role: Role) -> Result<Mapped, Fail> {
        let settings = self.settings(node, role);
        let [model, positive, latent, negative] = [
            ("model", PortKind::Model),
            ("positive", PortKind::Conditioning),
            ("latent_image", PortKind::Latent),
            ("negative", PortKind::Conditioning),
        ];
        let is_guided = settings.as_ref().is_ok_and(|settings| settings.cfg.is_some());
        let wires = match is_guided {
            true => self.wires(node, [model, positive, latent, negative]).map(|[m, p, l, n]| (m, p, l, Some(n))),
            false => self.wires(node, [model, positive, latent]).map(|[m, p, l]| (m, p, l, None)),
        };
        let wires = after_needs(wires)?;
        let settings = settings?;
        let seed_name = if role == Role::Sampler { "seed" } else { "noise_seed" };
        let seed = self.count(node, seed_name)?;
        let (model, positive, latent, negative) = wires?;

        let mut sample = wired(Node::new(self.id(node), "sample"), "model", &model);
        sample = wired(wired(sample, "positive", &positive), "latent", &latent);
        if let Some(negative) = &negative {
            sample = wired(sample, "negative", negative);
        }
        sample = sample
            .param("steps", settings.steps)
            .param("cfg", settings.cfg.unwrap_or(0.0))
            .param("sampler", settings.sampler)
            .param("scheduler", settings.scheduler)
            .param("seed", seed);
        if let Some(strength) = settings.strength {
            sample = sample.param("strength", strength);
        }
        if let Some(shift) = model.shift {
            sample = sample.param("shift", shift);
        }

        let mut mapped = Mapped::new(sample, "latent", PortKind::Latent);
        let label = self.label(node);
        if settings.cfg.is_none() {
            mapped.notes.push(format!("{label}: cfg 1 doesn't use the negative prompt, so it is left out"));
        }
        if sampling::is_stochastic(settings.sampler) {
            mapped.notes.push(format!("{label}: {} draws other noise between steps than ComfyUI", settings.sampler));
        }
        let control = self.value(node, CONTROL).ok().flatten().and_then(|value| value.as_str());
        if let Some(control) = control.filter(|control| *control != "fixed")
            && !self.has_link(node, seed_name)
        {
            mapped.notes.push(control_note(&label, control));
        }
        Ok(mapped)
    }

    fn settings(&mut self, node: usize, role: Role) -> Result<Settings, Fail> {
        let steps = self.count(node, "steps")?;
        if steps == 0 {
            return Err(Fail::Reason("steps must be 1 or more".to_owned()));
        }
        let (steps, strength) = match role {
            Role::SamplerAdvanced => {
                self.check_all_steps(node, steps)?;
                (steps, None)
            }
            _ => match self.value(node, "denoise")? {
                Some(_) => sampling::denoise(steps, self.number(node, "denoise")?).map_err(Fail::Reason)?,
                None => (steps, None),
            },
        };
        let cfg = sampling::guidance(self.number(node, "cfg")?).map_err(Fail::Reason)?;
        let name = self.text(node, "sampler_name")?;
        let sampler = sampling::sampler(name)
            .ok_or_else(|| Fail::Reason(format!("sampler {} has no counterpart; try euler", shorten(name))))?;
        let name = self.text(node, "scheduler")?;
        let scheduler = sampling::scheduler(name)
            .ok_or_else(|| Fail::Reason(format!("scheduler {} has no counterpart; try simple", shorten(name))))?;
        Ok(Settings { steps, strength, cfg, sampler, scheduler })
    }

    /// KSamplerAdvanced means the same as KSampler when it adds the noise itself and runs from the first step to the
    /// last; no noise is left over then, whether it may be returned or not.
    fn check_all_steps(&mut self, node: usize, steps: u64) -> Result<(), Fail> {
        let adds_noise = self.value(node, "add_noise")?;
        if adds_noise.is_some_and(|value| value.as_str() != Some("enable") && value.as_bool() != Some(true)) {
            return Err(Fail::Reason("sampling without adding noise has no counterpart".to_owned()));
        }
        let mut step = |name: &str, default: u64| match self.value(node, name)? {
            Some(_) => self.count(node, name),
            None => Ok(default),
        };
        if step("start_at_step", 0)? > 0 || step("end_at_step", steps)? < steps {
            return Err(Fail::Reason(format!("only all {steps} steps at once have a counterpart, not a part of them")));
        }
        Ok(())
    }

    /// A node between pictures and latents; `(their input, our port, its kind)` is what it works on.
    fn through_vae(&mut self, node: usize, ours: &str, from: (&str, &str, PortKind)) -> Result<Mapped, Fail> {
        let (theirs, port, kind) = from;
        let [input, vae] = self.wires(node, [(theirs, kind), ("vae", PortKind::Vae)])?;
        let mut mapped = Mapped::default();
        if self.workflow.nodes[node].class.ends_with("Tiled") {
            mapped.notes.push(format!("{}: the device policy decides whether to work in tiles", self.label(node)));
        }
        mapped.nodes.push(wired(wired(Node::new(self.id(node), ours), "vae", &vae), port, &input));
        Ok(mapped)
    }

    fn load_image(&mut self, node: usize) -> Result<Mapped, Fail> {
        let file = shorten(self.text(node, "image")?);
        let mut mapped = Mapped::new(Node::new(self.id(node), "input/image"), "image", PortKind::Image);
        mapped.notes.push(format!(
            "{} read {file}: add that picture as an asset (POST /v1/assets) and put its id into the asset param of \
             node {}",
            self.label(node),
            self.id(node)
        ));
        Ok(mapped)
    }
}

/// Syntax in a prompt that ComfyUI, but no text encoder, understands.
fn prompt_syntax(text: &str) -> Option<&'static str> {
    let weight = |part: &str| part.split_once(')').is_some_and(|(number, _)| number.trim().parse::<f32>().is_ok());
    if text.contains("embedding:") {
        Some("an embedding")
    } else if text.contains('(') && text.split(':').skip(1).any(weight) {
        Some("a weight such as (word:1.2)")
    } else if text.contains('{') && text.contains('|') && text.contains('}') {
        Some("a choice such as {one|other}")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::prompt_syntax;

    #[test]
    fn prompt_syntax_is_told_from_prose() {
        assert!(prompt_syntax("a (red:1.3) apple").is_some_and(|syntax| syntax.contains("weight")));
        assert!(prompt_syntax("embedding:EasyNegative, bad").is_some_and(|syntax| syntax.contains("embedding")));
        assert!(prompt_syntax("a {red|green} apple").is_some_and(|syntax| syntax.contains("choice")));
        for prose in ["a red apple (ripe)", "time: 12:30, a clock (old)", "{", ""] {
            assert_eq!(prompt_syntax(prose), None, "{prose}");
        }
    }
}
