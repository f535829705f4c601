//! The view that a model is built from.

use crate::{Checkpoint, Error, KeyPlan, Resolved, Result, Source, StoredDtype};
use candle_core::{DType, Device, Tensor};
use half::bf16;
use runtime_base::{CancelFlag, Quant};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct Root {
    checkpoint: Arc<Checkpoint>,
    resolved: Resolved,
    /// Names that were asked for, and whether as a matrix of a repeated block.
    asked: Mutex<BTreeMap<String, bool>>,
    cancel: CancelFlag,
    dry: bool,
    quant: Option<Quant>,
    random: Option<Arc<Random>>,
}

/// What a view of no checkpoint serves for every tensor.
struct Random {
    source: Source,
    bytes: Vec<u8>,
}

impl Root {
    /// The same, of which nothing was asked yet.
    fn again(&self) -> Self {
        Self {
            checkpoint: Arc::clone(&self.checkpoint),
            resolved: self.resolved.clone(),
            asked: Mutex::default(),
            cancel: self.cancel.clone(),
            dry: self.dry,
            quant: self.quant,
            random: self.random.clone(),
        }
    }
}

/// Tensors by canonical name below a prefix, cast to a compute type as they are read. Cheap to clone.
#[derive(Clone)]
pub struct Weights {
    root: Arc<Root>,
    prefix: String,
    dtype: DType,
    device: Device,
    in_blocks: bool,
}

/// Rows of a matrix as they are read, in the format that is nearest to the one on disk.
#[derive(Debug)]
pub enum RowBlock<'a> {
    /// 32-bit floats.
    F32(Cow<'a, [f32]>),
    /// Brain floats.
    Bf16(Cow<'a, [bf16]>),
}

impl Weights {
    /// A view of all of `checkpoint` through `plan`.
    ///
    /// # Errors
    /// The plan doesn't fit the checkpoint.
    pub fn new(checkpoint: Arc<Checkpoint>, plan: &KeyPlan, dtype: DType, device: Device) -> Result<Self> {
        let resolved = plan.resolve(&checkpoint)?;
        Ok(Self::from_parts(checkpoint, resolved, None, dtype, device))
    }

    /// A view of no checkpoint, for measurements: every tensor of up to `largest` elements is there, has whatever shape it
    /// is asked for in, and holds random brain floats in `[-0.05, 0.05)`. All share one piece of memory.
    pub fn random(largest: usize, dtype: DType, device: Device) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 24) as f32 * 0.1 - 0.05
        };
        let bytes = (0..largest).flat_map(|_| bf16::from_f32(next()).to_le_bytes()).collect();
        let source = Source { stored: "random".to_owned(), rows: 0..0, shape: Vec::new() };
        let random = Some(Arc::new(Random { source, bytes }));
        Self::from_parts(Arc::new(Checkpoint::empty()), Resolved::new(), random, dtype, device)
    }

    fn from_parts(
        checkpoint: Arc<Checkpoint>,
        resolved: Resolved,
        random: Option<Arc<Random>>,
        dtype: DType,
        device: Device,
    ) -> Self {
        let (asked, cancel) = (Mutex::default(), CancelFlag::new());
        let root = Root { checkpoint, resolved, asked, cancel, dry: false, quant: None, random };
        Self { root: Arc::new(root), prefix: String::new(), dtype, device, in_blocks: false }
    }

    /// The same view, with every read refused once `cancel` is set. To be called before the view is cloned.
    #[must_use]
    pub fn with_cancel(self, cancel: &CancelFlag) -> Self {
        let root = Root { cancel: cancel.clone(), ..self.root.again() };
        Self { root: Arc::new(root), ..self }
    }

    /// The same view, with the matrices of [`Self::blocks`] to be held in `quant`. To be called before the view is cloned.
    #[must_use]
    pub fn with_quant(self, quant: Option<Quant>) -> Self {
        Self { root: Arc::new(Root { quant, ..self.root.again() }), ..self }
    }

    /// The same view for a model's repeated blocks, whose matrices are nearly all of its weights and the part that is
    /// quantized. Layers at its ends stay as they are: they are small, and errors there weigh most.
    #[must_use]
    pub fn blocks(&self) -> Self {
        Self { in_blocks: true, ..self.clone() }
    }

    /// How matrices of this view are to be held, if not in the compute type.
    pub fn quant(&self) -> Option<Quant> {
        self.root.quant.filter(|_| self.in_blocks)
    }

    /// Bytes that a tensor takes in memory as it is held, once it was asked for.
    pub fn held_bytes(&self, name: &str) -> u64 {
        let shape = self.shape(name).unwrap_or_default();
        let elements = shape.iter().product::<usize>() as u64;
        if let Some(bytes) = self.stored_blocks(name).and_then(|blocks| blocks.bytes_of(elements as usize)) {
            return bytes as u64;
        }
        match self.root.quant.filter(|_| self.is_block_matrix(name)) {
            None => elements * self.dtype.size_in_bytes() as u64,
            // A factor and a sum beside each row.
            Some(Quant::Q8) => elements + 8 * shape.first().map_or(0, |rows| *rows as u64),
            // Blocks of 32 with a factor of 16 bits.
            Some(Quant::Q4 | Quant::Nf4 | Quant::Nvfp4) => elements * 18 / 32,
        }
    }

    /// The part of [`Self::held_bytes`] that a quantization would shrink: all of a matrix of [`Self::blocks`].
    pub fn quantizable_bytes(&self, name: &str) -> u64 {
        if self.root.quant.is_none() && self.is_block_matrix(name) { self.held_bytes(name) } else { 0 }
    }

    fn is_block_matrix(&self, name: &str) -> bool {
        self.asked().get(&self.full(name)) == Some(&true)
    }

    /// The same view for a rehearsal: a model that is built from it is checked tensor by tensor as in earnest, and
    /// [`Self::unused`] tells of leftovers, but no weights are read and the model's own are worthless. [`Self::get`] gives
    /// zeros without memory behind them, [`Self::for_each_rows`] gives no rows.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        Self { root: Arc::new(Root { dry: true, ..self.root.again() }), ..self.clone() }
    }

    /// Whether this is a rehearsal.
    pub fn is_dry_run(&self) -> bool {
        self.root.dry
    }

    /// The view below `name`.
    #[must_use]
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The same view with another compute type.
    #[must_use]
    pub fn to_dtype(&self, dtype: DType) -> Self {
        Self { dtype, ..self.clone() }
    }

    /// The same view with tensors put on another device.
    #[must_use]
    pub fn to_device(&self, device: &Device) -> Self {
        Self { device: device.clone(), ..self.clone() }
    }

    /// The compute type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that tensors are put on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The flag that stops reads.
    pub fn cancel(&self) -> &CancelFlag {
        &self.root.cancel
    }

    /// The checkpoint behind the view.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.root.checkpoint
    }

    /// The canonical shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.root.resolved.get(&self.full(name)).map(|source| source.shape.as_slice())
    }

    /// Whether there is a tensor of that canonical name.
    pub fn contains(&self, name: &str) -> bool {
        self.shape(name).is_some()
    }

    /// How many numbered children `name.0`, `name.1`, … there are.
    pub fn count(&self, name: &str) -> usize {
        let start = format!("{}{name}.", self.prefix);
        let below = |index: usize| {
            let start = format!("{start}{index}.");
            self.root.resolved.range(start.clone()..).next().is_some_and(|(key, _)| key.starts_with(&start))
        };
        (0..).take_while(|index| below(*index)).count()
    }

    /// Canonical names below the prefix, without it.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let below = self.root.resolved.range(self.prefix.clone()..);
        below.map_while(|(name, _)| name.strip_prefix(self.prefix.as_str()))
    }

    /// A tensor of that shape in the compute type.
    ///
    /// # Errors
    /// It is missing, has another shape, isn't made of real numbers, or the load was cancelled.
    pub fn get(&self, shape: &[usize], name: &str) -> Result<Tensor> {
        self.get_dtype(shape, name, self.dtype)
    }

    /// A tensor of that shape in a type of its own.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_dtype(&self, shape: &[usize], name: &str, dtype: DType) -> Result<Tensor> {
        let (source, stored, bytes) = self.find(shape, name)?;
        let backend = |e: candle_core::Error| self.error(source, format!("can't become a tensor: {e}"));
        if self.root.dry {
            let zero = Tensor::zeros((), dtype, &self.device);
            return zero.and_then(|zero| zero.broadcast_as(shape)).map_err(backend);
        }
        let same = match (stored, dtype) {
            (StoredDtype::F32, DType::F32) => Some(DType::F32),
            (StoredDtype::F16, DType::F16) => Some(DType::F16),
            (StoredDtype::Bf16, _) => Some(DType::BF16),
            _ => None,
        };
        let tensor = match same {
            Some(stored) => Tensor::from_raw_buffer(bytes, stored, shape, &Device::Cpu).map_err(backend)?,
            None => {
                let values = self.to_f32(source, stored, bytes)?.into_owned();
                Tensor::from_vec(values, shape, &Device::Cpu).map_err(backend)?
            }
        };
        // Cast on the host, so that a device never holds the wider copy.
        tensor.to_dtype(dtype).and_then(|t| t.to_device(&self.device)).map_err(backend)
    }

    /// The values of a tensor of that shape.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn get_f32_vec(&self, shape: &[usize], name: &str) -> Result<Vec<f32>> {
        let (source, stored, bytes) = self.find(shape, name)?;
        if self.root.dry {
            return Ok(vec![0.0; shape.iter().product()]);
        }
        Ok(self.to_f32(source, stored, bytes)?.into_owned())
    }

    /// Chosen rows of a matrix `(rows, columns)`, one after another.
    ///
    /// # Errors
    /// As [`Self::get`], and for a row that isn't there.
    pub fn get_rows_f32(
        &self,
        shape: [usize; 2],
        name: &str,
        rows: impl IntoIterator<Item = usize>,
    ) -> Result<Vec<f32>> {
        let (source, stored, bytes) = self.find(&shape, name)?;
        let row_bytes = stored.bytes_of(shape[1]).unwrap_or(usize::MAX);
        let mut values = Vec::new();
        for row in rows {
            let range = row * row_bytes..(row + 1) * row_bytes;
            let bytes = bytes.get(range).ok_or_else(|| self.error(source, format!("has no row {row}")))?;
            values.extend_from_slice(&self.to_f32(source, stored, bytes)?);
        }
        Ok(values)
    }

    /// Reads the rows of a matrix `(rows, columns)` in blocks of at most `rows_per_block`, so that a layer can pack them
    /// without a second resident copy. Brain floats come as they are, everything else as `f32`.
    ///
    /// # Errors
    /// As [`Self::get`], and whatever `each` gives.
    pub fn for_each_rows(
        &self,
        shape: [usize; 2],
        name: &str,
        rows_per_block: usize,
        mut each: impl FnMut(Range<usize>, RowBlock<'_>) -> Result<()>,
    ) -> Result<()> {
        let (source, stored, bytes) = self.find(&shape, name)?;
        if self.in_blocks {
            self.asked().insert(self.full(name), true);
        }
        if self.root.dry {
            return Ok(());
        }
        let [rows, columns] = shape;
        let row_bytes = stored.bytes_of(columns).unwrap_or(usize::MAX);
        let step = rows_per_block.max(1);
        for start in (0..rows).step_by(step) {
            self.root.cancel.check()?;
            let end = (start + step).min(rows);
            let block = &bytes[start * row_bytes..end * row_bytes];
            let block = match stored {
                StoredDtype::Bf16 => RowBlock::Bf16(bf16_values(block)),
                _ => RowBlock::F32(self.to_f32(source, stored, block)?),
            };
            each(start..end, block)?;
        }
        Ok(())
    }

    /// The format of blocks that a tensor is stored in, if it is.
    pub fn stored_blocks(&self, name: &str) -> Option<StoredDtype> {
        let source = self.root.resolved.get(&self.full(name))?;
        self.root.checkpoint.info(&source.stored).map(|info| info.dtype).filter(|dtype| dtype.is_blocks())
    }

    /// The rows of a matrix `(rows, columns)` as they are stored, with their format.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn stored_rows(&self, shape: [usize; 2], name: &str) -> Result<(StoredDtype, &[u8])> {
        let (_, stored, bytes) = self.find(&shape, name)?;
        Ok((stored, bytes))
    }

    /// Canonical names that nobody asked for since the view was made: leftovers that the model doesn't know.
    pub fn unused(&self) -> Vec<String> {
        let asked = self.asked();
        self.root.resolved.keys().filter(|name| !asked.contains_key(*name)).cloned().collect()
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<String, bool>> {
        self.root.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn error(&self, source: &Source, message: String) -> Error {
        let checkpoint = &self.root.checkpoint;
        let file = checkpoint.info(&source.stored).map_or(checkpoint.path(), |info| checkpoint.file_of(info));
        Error::tensor(file, &source.stored, message)
    }

    fn find(&self, shape: &[usize], name: &str) -> Result<(&Source, StoredDtype, &[u8])> {
        self.root.cancel.check()?;
        let full = self.full(name);
        let checkpoint = &self.root.checkpoint;
        if let Some(Random { source, bytes }) = self.root.random.as_deref() {
            let needed = 2 * shape.iter().product::<usize>();
            let bytes = bytes.get(..needed).ok_or_else(|| self.error(source, "is smaller than asked for".into()))?;
            return Ok((source, StoredDtype::Bf16, bytes));
        }
        let source =
            self.root.resolved.get(&full).ok_or_else(|| Error::tensor(checkpoint.path(), &full, "is missing"))?;
        self.asked().entry(full).or_default();
        if source.shape != shape {
            return Err(self.error(source, format!("has shape {:?} where the model needs {shape:?}", source.shape)));
        }
        let info = checkpoint.info(&source.stored);
        let dtype = info.ok_or_else(|| self.error(source, "is missing".into()))?.dtype;
        let bytes = checkpoint.raw(&source.stored)?;
        let row = dtype.bytes_of(shape.iter().skip(1).product()).unwrap_or(usize::MAX);
        let range = source.rows.start * row..source.rows.end * row;
        let bytes = bytes.get(range).ok_or_else(|| self.error(source, "lies outside its file".into()))?;
        if !dtype.is_float() {
            return Err(self.error(source, format!("holds {dtype}, not real numbers")));
        }
        Ok((source, dtype, bytes))
    }

    fn to_f32<'a>(&self, source: &Source, stored: StoredDtype, bytes: &'a [u8]) -> Result<Cow<'a, [f32]>> {
        stored.to_f32(bytes).ok_or_else(|| self.error(source, format!("holds {stored}, not real numbers")))
    }
}

fn bf16_values(bytes: &[u8]) -> Cow<'_, [bf16]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) if cfg!(target_endian = "little") => Cow::Borrowed(values),
        _ => Cow::Owned(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect()),
    }
}
