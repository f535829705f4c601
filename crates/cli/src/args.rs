//! The command line. Every setting is also an environment variable.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Renders typed node graphs into immutable takes, on the machine at hand.
#[derive(Debug, Parser)]
#[command(name = "inline", version, max_term_width = 110)]
pub struct Cli {
    /// Settings that every command shares.
    #[command(flatten)]
    pub settings: SettingsArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Settings that every command shares.
#[derive(Debug, Clone, Args)]
pub struct SettingsArgs {
    /// Folder of model files, in ComfyUI-style categories
    #[arg(long, global = true, env = "INLINE_MODELS_DIR", default_value = "./models", value_name = "DIR")]
    pub models_dir: PathBuf,
    /// Folder of runs, takes and assets
    #[arg(long, global = true, env = "INLINE_DATA_DIR", default_value = "./.inline", value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Device profile: gpu-max, lowvram or cpu [default: by the machine]
    #[arg(long, global = true, env = "INLINE_PROFILE", value_name = "PROFILE")]
    pub profile: Option<String>,
    /// Memory of the GPU that may be used, in GiB [default: all of it]
    #[arg(long, global = true, env = "INLINE_VRAM_BUDGET_GB", value_name = "GB")]
    pub vram_budget_gb: Option<String>,
    /// Whether weights may wait in host memory: 1 or 0
    #[arg(long, global = true, env = "INLINE_ALLOW_CPU_OFFLOAD", value_name = "FLAG")]
    pub allow_cpu_offload: Option<String>,
    /// Whether small GPUs keep int8 weights resident: 1 or 0
    #[arg(long, global = true, env = "INLINE_SMART_MEMORY", value_name = "FLAG")]
    pub smart_memory: Option<String>,
    /// Split over several GPUs, such as pipefusion=2,ulysses=2
    #[arg(long, global = true, env = "INLINE_PARALLEL", value_name = "SPLIT")]
    pub parallel: Option<String>,
    /// Z-Image checkpoint, a file or folder, used when a node names none
    #[arg(long, global = true, env = "INLINE_ZIMAGE_MODEL", value_name = "PATH")]
    pub zimage_model: Option<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Render a prompt to a PNG file
    Render(RenderArgs),
    /// Run a graph without a server
    Run(RunArgs),
    /// Talk with a language model, or have it answer once
    Chat(ChatArgs),
    /// Serve the /v1 API
    Serve(ServeArgs),
    /// List what this build can load and what the models folder offers
    Models {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Say what a checkpoint is, from its header
    Inspect {
        /// A checkpoint file or folder
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Turn a ComfyUI workflow into a graph
    Import(ImportArgs),
    /// Time a piece of work on random weights
    Bench(crate::bench::BenchArgs),
}

/// Arguments of `render`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// What to draw
    pub prompt: String,
    /// The PNG file to write [default: a name made from the prompt and seed]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Node type [default: the installed model, else the built-in demo]
    #[arg(long, value_name = "TYPE")]
    pub node: Option<String>,
    /// Width in pixels
    #[arg(long, value_name = "PX")]
    pub width: Option<u32>,
    /// Height in pixels
    #[arg(long, value_name = "PX")]
    pub height: Option<u32>,
    /// Sampler steps
    #[arg(long, value_name = "N")]
    pub steps: Option<u32>,
    /// Guidance scale, 0 for none
    #[arg(long, value_name = "SCALE", allow_negative_numbers = true)]
    pub guidance: Option<String>,
    /// Seed from 0 to 2^64-1, or -1 for a random one
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<String>,
    /// Number of pictures; picture i uses seed+i
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub count: u32,
    /// Picture to start from
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// How far to move away from the picture, 0 to 1
    #[arg(long, value_name = "X", requires = "image", allow_negative_numbers = true)]
    pub strength: Option<String>,
    /// What to avoid; needs guidance
    #[arg(long, value_name = "TEXT")]
    pub negative: Option<String>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The graph, a JSON file, or - for standard input
    pub graph: PathBuf,
    /// Id of the node whose takes are wanted
    #[arg(long, value_name = "ID")]
    pub target: String,
    /// Folder that the takes are written to
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
}

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// A GGUF file, a folder with safetensors, or the name of a model in llm/ of the models folder
    pub model: String,
    /// What to answer, or - for standard input [default: standard input, or a conversation at a terminal]
    pub prompt: Option<String>,
    /// Instructions for the model
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// How freely words are chosen; 0 takes the likeliest [default: 0.7]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<String>,
    /// Chooses among the likeliest words that together reach this probability [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<String>,
    /// Seed from 0 to 2^64-1, or -1 for a random one
    #[arg(long, value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<String>,
    /// Longest answer in tokens [default: until the model's context is full]
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Schema that the answer must match: JSON, or a file with it
    #[arg(long, value_name = "SCHEMA")]
    pub json_schema: Option<String>,
    /// Whether a model that can think before it answers does: true or false [default: as the model has it]
    #[arg(long, value_name = "FLAG")]
    pub thinking: Option<bool>,
    /// Say how long the first token took, and how fast the others came
    #[arg(long)]
    pub timings: bool,
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address to listen on
    #[arg(long, env = "INLINE_HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on
    #[arg(long, env = "INLINE_PORT", default_value_t = 8848)]
    pub port: u16,
    /// Bearer token that requests must carry
    #[arg(long, env = "INLINE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Listen beyond this machine without a token
    #[arg(long)]
    pub insecure: bool,
    /// Origins whose pages may use the engine, such as https://studio.example; pages of this machine always may
    #[arg(long, env = "INLINE_ALLOW_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub allow_origin: Vec<String>,
    /// Largest JSON body, in MiB
    #[arg(long, env = "INLINE_JSON_LIMIT_MB", default_value_t = 8, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub json_limit_mb: u32,
    /// Largest uploaded file, in MiB
    #[arg(long, env = "INLINE_ASSET_LIMIT_MB", default_value_t = 256, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub asset_limit_mb: u32,
    /// Seconds that a client may be silent in the middle of a request, or idle between two
    #[arg(long, env = "INLINE_REQUEST_TIMEOUT_S", default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub request_timeout_s: u32,
    /// Open connections at most; further ones wait
    #[arg(long, env = "INLINE_MAX_CONNECTIONS", default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Folder below which `input/image` may read files by path; may be given several times
    #[arg(long, value_name = "DIR")]
    pub allow_path: Vec<PathBuf>,
    /// Runs in work at a time; those of one model and size share passes through it
    #[arg(long, env = "INLINE_WORKERS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,
    /// Disk space for results that can be made again, in GB; 0 keeps none
    #[arg(long, env = "INLINE_CACHE_GB", default_value_t = 2.0, value_parser = gigabytes)]
    pub cache_gb: f64,
}

fn gigabytes(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "a number of gigabytes, such as 2 or 0.5".to_owned())?;
    if (0.0..=1e6).contains(&value) { Ok(value) } else { Err("from 0 to 1000000".to_owned()) }
}

/// Arguments of `import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A ComfyUI workflow, in the API or the UI format, or - for standard input
    pub workflow: PathBuf,
    /// The graph to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}
