//! Pictures in and out: decoding what users bring, encoding takes with their parameters.

use gen_core::Image;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits, metadata::Orientation};
use serde_json::{Map, Value};
use std::io::Cursor;

/// Largest picture that is decoded, in pixels.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Why a picture can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// The header says more pixels than are allowed; nothing was decoded.
    #[error("the picture has {width}x{height} pixels; at most {} million are taken", MAX_PIXELS / 1_000_000)]
    TooLarge {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
    },
    /// It isn't a picture, is damaged, or has a format that isn't known.
    #[error("the picture can't be read ({0}); use PNG, JPEG, WebP, GIF, BMP or TIFF")]
    Unreadable(String),
}

/// Decodes a picture to RGB8: turned upright as its EXIF data says, 16 bits rounded to 8, gray and palettes expanded, CMYK
/// converted, transparency composited over white.
///
/// # Errors
/// As [`PictureError`]. The header is checked before any pixel is decoded.
pub fn decode(bytes: &[u8]) -> Result<Image, PictureError> {
    let picture = open(bytes)?;
    let rgb = if picture.color().has_alpha() { over_white(&picture) } else { picture.into_rgb8() };
    let (width, height) = rgb.dimensions();
    Image::new(width, height, rgb.into_raw()).map_err(|e| PictureError::Unreadable(e.to_string()))
}

/// The transparent part of a picture as a mask, a PNG that is white where nothing shows; `None` if all of it is opaque.
///
/// # Errors
/// As [`decode`].
pub fn edit_mask(bytes: &[u8]) -> Result<Option<Vec<u8>>, PictureError> {
    let picture = open(bytes)?;
    if !picture.color().has_alpha() {
        return Ok(None);
    }
    let rgba = picture.into_rgba8();
    let mut mask = image::GrayImage::new(rgba.width(), rgba.height());
    for (to, from) in mask.pixels_mut().zip(rgba.pixels()) {
        to.0 = [255 - from.0[3]];
    }
    if mask.pixels().all(|pixel| pixel.0 == [0]) {
        return Ok(None);
    }
    let mut png = Cursor::new(Vec::new());
    mask.write_to(&mut png, image::ImageFormat::Png).map_err(|e| PictureError::Unreadable(e.to_string()))?;
    Ok(Some(png.into_inner()))
}

/// Opens a picture, turned upright.
fn open(bytes: &[u8]) -> Result<DynamicImage, PictureError> {
    let unreadable = |e: &dyn std::fmt::Display| PictureError::Unreadable(e.to_string());
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| unreadable(&e))?;
    let mut limits = Limits::default();
    // The header is looked at below; this bounds what a decoder allocates beside the pixels.
    limits.max_alloc = Some(MAX_PIXELS * 8 + (64 << 20));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(|e| unreadable(&e))?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(PictureError::TooLarge { width, height });
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder).map_err(|e| unreadable(&e))?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// A small JPEG for looking at while better comes.
///
/// # Errors
/// The picture is too large for the format.
pub fn encode_jpeg(picture: &Image) -> Result<Vec<u8>, image::ImageError> {
    let mut bytes = Vec::new();
    let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut bytes, 80);
    encoder.encode(picture.pixels(), picture.width(), picture.height(), image::ExtendedColorType::Rgb8)?;
    Ok(bytes)
}

fn over_white(picture: &DynamicImage) -> image::RgbImage {
    let rgba = picture.to_rgba8();
    let mut rgb = image::RgbImage::new(rgba.width(), rgba.height());
    for (to, from) in rgb.pixels_mut().zip(rgba.pixels()) {
        let [r, g, b, alpha] = from.0.map(u32::from);
        let mix = |value: u32| ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8;
        to.0 = [mix(r), mix(g), mix(b)];
    }
    rgb
}

/// Encodes a take as PNG with two texts: `parameters`, in the form that AUTOMATIC1111's tools read, and `graph`, JSON.
/// Equal inputs give equal bytes.
///
/// # Errors
/// The encoder's message.
pub fn encode_png(image: &Image, parameters: &str, graph: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, image.width(), image.height());
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    for (key, text) in [("parameters", parameters), ("graph", graph)] {
        // Readers expect Latin-1 in tEXt; everything else is iTXt, which is UTF-8.
        let latin1 = text.chars().all(|c| ('\u{20}'..='\u{7e}').contains(&c) || c == '\n');
        let added = match latin1 {
            true => encoder.add_text_chunk(key.to_owned(), text.to_owned()),
            false => encoder.add_itxt_chunk(key.to_owned(), text.to_owned()),
        };
        added.map_err(|e| e.to_string())?;
    }
    let mut writer = encoder.write_header().map_err(|e| e.to_string())?;
    writer.write_image_data(image.pixels()).map_err(|e| e.to_string())?;
    writer.finish().map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// The `parameters` text of a take: prompt, negative prompt, and one line of settings.
pub fn parameters_text(params: &Map<String, Value>) -> String {
    let text = |key: &str| params.get(key).and_then(Value::as_str).unwrap_or("");
    let shown = |key: &str| match params.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Null) | None => None,
        Some(other) => Some(other.to_string()),
    };
    let mut out = text("prompt").to_owned();
    if !text("negative_prompt").is_empty() {
        out += &format!("\nNegative prompt: {}", text("negative_prompt"));
    }
    let checkpoint = params.get("checkpoint").and_then(|c| c.get("name")).and_then(Value::as_str);
    let size = shown("width").zip(shown("height")).map(|(w, h)| format!("{w}x{h}"));
    let settings = [
        ("Steps", shown("steps")),
        ("Sampler", shown("sampler")),
        ("Schedule type", shown("scheduler")),
        ("CFG scale", shown("guidance")),
        ("Seed", shown("seed")),
        ("Size", size),
        ("Model", checkpoint.map(str::to_owned)),
        ("Denoising strength", shown("strength").filter(|_| params.contains_key("image"))),
        ("Version", shown("engineVersion").map(|v| format!("inline {v}"))),
    ];
    let settings = settings.into_iter().filter_map(|(name, value)| value.map(|value| format!("{name}: {value}")));
    let line = settings.collect::<Vec<_>>().join(", ");
    if !line.is_empty() {
        out += &format!("\n{line}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::ImageFormat;
    use serde_json::json;

    fn write(picture: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn texts_survive_whatever_their_script() {
        let image = Image::new(2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
        let bytes = encode_png(&image, "a red apple 🍎", r#"{"a":"plain"}"#).unwrap();
        assert_eq!(bytes, encode_png(&image, "a red apple 🍎", r#"{"a":"plain"}"#).unwrap());
        let reader = png::Decoder::new(Cursor::new(&bytes)).read_info().unwrap();
        let info = reader.info();
        assert_eq!(info.uncompressed_latin1_text[0].text, r#"{"a":"plain"}"#);
        assert_eq!(info.utf8_text[0].get_text().unwrap(), "a red apple 🍎");
        assert_eq!(decode(&bytes).unwrap(), image);
    }

    #[test]
    fn deep_gray_and_transparent_pictures_become_rgb() {
        let deep = DynamicImage::ImageRgb16(image::ImageBuffer::from_pixel(3, 2, image::Rgb([65535, 32896, 0])));
        assert_eq!(decode(&write(&deep, ImageFormat::Png)).unwrap().pixels()[..3], [255, 128, 0]);
        let gray = DynamicImage::ImageLuma8(image::ImageBuffer::from_pixel(3, 2, image::Luma([77])));
        assert_eq!(decode(&write(&gray, ImageFormat::Png)).unwrap().pixels()[..3], [77, 77, 77]);
        let clear = DynamicImage::ImageRgba8(image::ImageBuffer::from_pixel(3, 2, image::Rgba([200, 0, 0, 0])));
        assert_eq!(decode(&write(&clear, ImageFormat::Png)).unwrap().pixels()[..3], [255, 255, 255]);
        let half = DynamicImage::ImageRgba8(image::ImageBuffer::from_pixel(3, 2, image::Rgba([0, 0, 0, 128])));
        assert_eq!(decode(&write(&half, ImageFormat::Png)).unwrap().pixels()[..3], [127, 127, 127]);
    }

    #[test]
    fn the_transparent_part_is_what_is_to_be_painted() {
        let mut picture = image::RgbaImage::from_pixel(2, 1, image::Rgba([9, 9, 9, 255]));
        assert_eq!(edit_mask(&write(&DynamicImage::ImageRgba8(picture.clone()), ImageFormat::Png)), Ok(None));
        assert_eq!(edit_mask(&write(&DynamicImage::new_rgb8(2, 1), ImageFormat::Png)), Ok(None));
        picture.get_pixel_mut(1, 0).0[3] = 0;
        let mask = edit_mask(&write(&DynamicImage::ImageRgba8(picture), ImageFormat::Png)).unwrap().unwrap();
        assert_eq!(decode(&mask).unwrap().pixels(), [0, 0, 0, 255, 255, 255]);
    }

    #[test]
    fn garbage_and_giants_are_refused() {
        assert!(matches!(decode(b"hello"), Err(PictureError::Unreadable(_))));
        let whole = write(&DynamicImage::new_rgb8(64, 64), ImageFormat::Png);
        assert!(matches!(decode(&whole[..whole.len() / 2]), Err(PictureError::Unreadable(_))));
        let mut giant = write(&DynamicImage::new_rgb8(1, 1), ImageFormat::Png);
        giant[16..24].copy_from_slice(&[0, 0, 0x9c, 0x40, 0, 0, 0x9c, 0x40]);
        let crc = {
            let mut hasher = crc32(&giant[12..29]);
            hasher ^= 0xffff_ffff;
            hasher
        };
        giant[29..33].copy_from_slice(&crc.to_be_bytes());
        assert_eq!(decode(&giant), Err(PictureError::TooLarge { width: 40000, height: 40000 }));
    }

    fn crc32(bytes: &[u8]) -> u32 {
        bytes.iter().fold(0xffff_ffffu32, |mut crc, byte| {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
            }
            crc
        })
    }

    #[test]
    fn parameters_read_as_other_tools_write_them() {
        let Value::Object(params) = json!({"prompt": "a cat", "negative_prompt": "dog", "steps": 9, "sampler": "euler",
            "guidance": 3.0, "seed": 18446744073709551615u64, "width": 64, "height": 32, "checkpoint": {"name": "m"}})
        else {
            unreachable!()
        };
        assert_eq!(
            parameters_text(&params),
            "a cat\nNegative prompt: dog\nSteps: 9, Sampler: euler, CFG scale: 3.0, Seed: 18446744073709551615, Size: 64x32, Model: m"
        );
    }
}
