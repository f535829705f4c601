//! What flows along an edge.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a port. Media kinds can become takes; engine handles are opaque and never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// One picture.
    Image,
    /// An ordered list of pictures; the one kind whose ports take several edges.
    #[serde(rename = "image[]")]
    ImageList,
    /// Frames with a rate, with or without sound.
    Video,
    /// A waveform.
    Audio,
    /// A text.
    Text,
    /// A one-channel picture that says where to paint.
    Mask,
    /// A loaded denoiser.
    Model,
    /// A loaded VAE.
    Vae,
    /// A loaded text encoder with its tokenizer.
    TextEncoder,
    /// An adapter.
    Lora,
    /// An encoded prompt.
    Conditioning,
    /// Latents.
    Latent,
    /// A control picture.
    Control,
}

impl PortKind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::Image,
        Self::ImageList,
        Self::Video,
        Self::Audio,
        Self::Text,
        Self::Mask,
        Self::Model,
        Self::Vae,
        Self::TextEncoder,
        Self::Lora,
        Self::Conditioning,
        Self::Latent,
        Self::Control,
    ];

    /// The kind's name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::ImageList => "image[]",
            Self::Video => "video",
            Self::Audio => "audio",
            Self::Text => "text",
            Self::Mask => "mask",
            Self::Model => "model",
            Self::Vae => "vae",
            Self::TextEncoder => "text-encoder",
            Self::Lora => "lora",
            Self::Conditioning => "conditioning",
            Self::Latent => "latent",
            Self::Control => "control",
        }
    }

    /// Whether an input of this kind takes an output of kind `output`: the same kind, and one picture wherever
    /// a list of pictures or a control picture is wanted.
    pub fn accepts(self, output: Self) -> bool {
        self == output || (output == Self::Image && matches!(self, Self::ImageList | Self::Control))
    }

    /// Whether an input of this kind takes a list of edges.
    pub const fn is_list(self) -> bool {
        matches!(self, Self::ImageList)
    }

    /// Whether values of this kind are media, not engine handles.
    pub const fn is_media(self) -> bool {
        matches!(self, Self::Image | Self::ImageList | Self::Video | Self::Audio | Self::Text | Self::Mask)
    }

    /// The kind of take that a value of this kind becomes, if any.
    pub const fn take_kind(self) -> Option<MediaKind> {
        match self {
            Self::Image | Self::ImageList => Some(MediaKind::Image),
            Self::Video => Some(MediaKind::Video),
            Self::Audio => Some(MediaKind::Audio),
            _ => None,
        }
    }
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kind of a take, and a node type's `outputKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A video.
    Video,
    /// A sound.
    Audio,
}

impl MediaKind {
    /// The kind's name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Video => "video",
            Self::Audio => "audio",
        }
    }
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_are_the_printed_names() {
        for kind in PortKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for kind in [MediaKind::Image, MediaKind::Video, MediaKind::Audio] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }

    #[test]
    fn same_kinds_connect_and_an_image_also_serves_lists_and_controls() {
        for input in PortKind::ALL {
            for output in PortKind::ALL {
                let expected =
                    input == output || (output.as_str() == "image" && ["image[]", "control"].contains(&input.as_str()));
                assert_eq!(input.accepts(output), expected, "{output} -> {input}");
            }
        }
    }
}
