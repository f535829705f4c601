//! Latents and captions as sequences of tokens: patches, padding, positions.

use candle_core::{DType, Tensor};
use layers::{Result, RopeStyle, RopeTable};

use crate::ZImageConfig;

/// Sequences are padded to multiples of this, with a token that was learned for it.
pub const MULTIPLE: usize = 32;

/// Length of a sequence of `tokens` with its padding.
pub fn padded(tokens: usize) -> usize {
    tokens.next_multiple_of(MULTIPLE)
}

/// `(channels, height, width)` to `(tokens, patch_dim)`, whose values are ordered row, column, channel.
pub fn patchify(latents: &Tensor, patch: usize) -> Result<Tensor> {
    let (channels, height, width) = latents.dims3()?;
    let (rows, columns) = (height / patch, width / patch);
    let split = latents.reshape(&[channels, rows, patch, columns, patch][..])?;
    Ok(split.permute([1, 3, 2, 4, 0].as_slice())?.reshape((rows * columns, patch * patch * channels))?)
}

/// The inverse of [`patchify`], to latents of that height and width.
pub fn unpatchify(tokens: &Tensor, patch: usize, [height, width]: [usize; 2]) -> Result<Tensor> {
    let (rows, columns) = (height / patch, width / patch);
    let channels = tokens.dim(1)? / (patch * patch);
    let split = tokens.reshape(&[rows, columns, patch, patch, channels][..])?;
    Ok(split.permute([4, 0, 2, 1, 3].as_slice())?.reshape((channels, height, width))?)
}

/// Appends `pad_token` `(1, dim)` to `(tokens, dim)` up to the padded length; gives `(1, padded, dim)` in f32.
pub fn pad(tokens: &Tensor, pad_token: &Tensor) -> Result<Tensor> {
    let (count, dim) = tokens.dims2()?;
    let tokens = tokens.to_dtype(DType::F32)?;
    let missing = padded(count) - count;
    let all = match missing {
        0 => tokens,
        _ => Tensor::cat(&[tokens, pad_token.to_dtype(DType::F32)?.expand((missing, dim))?], 0)?,
    };
    Ok(all.unsqueeze(0)?)
}

fn table(config: &ZImageConfig, positions: impl Iterator<Item = [usize; 3]>) -> RopeTable {
    let frequencies = config.axes.map(|dim| RopeTable::frequencies(dim, config.rope_theta));
    RopeTable::multi_axis(RopeStyle::Interleaved, &frequencies, positions)
}

/// Rotations of a caption of `tokens` with its padding: places 1, 2, … on the first axis.
pub fn caption_rope(config: &ZImageConfig, tokens: usize) -> RopeTable {
    table(config, (1..=padded(tokens)).map(|place| [place, 0, 0]))
}

/// Rotations of an image of `rows` by `columns` tokens behind a caption of `caption` tokens; its padding stays at the
/// origin.
pub fn image_rope(config: &ZImageConfig, caption: usize, [rows, columns]: [usize; 2]) -> RopeTable {
    let first = padded(caption) + 1;
    let image = (0..rows).flat_map(|row| (0..columns).map(move |column| [first, row, column]));
    let padding = padded(rows * columns) - rows * columns;
    table(config, image.chain(std::iter::repeat_n([0; 3], padding)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn patches_are_ordered_row_column_channel_and_fit_together_again() {
        let latents = Tensor::arange(0f32, 3.0 * 4.0 * 6.0, &Device::Cpu).unwrap().reshape((3, 4, 6)).unwrap();
        let tokens = patchify(&latents, 2).unwrap();
        assert_eq!(tokens.dims(), [6, 12]);
        // token (row 0, column 1): cells (0, 2), (0, 3), (1, 2), (1, 3), three channels each
        let second = tokens.to_vec2::<f32>().unwrap()[1].clone();
        assert_eq!(second[..6], [2.0, 26.0, 50.0, 3.0, 27.0, 51.0]);
        assert_eq!(second[6..9], [8.0, 32.0, 56.0]);
        let back = unpatchify(&tokens, 2, [4, 6]).unwrap();
        assert_eq!(back.to_vec3::<f32>().unwrap(), latents.to_vec3::<f32>().unwrap());
    }

    #[test]
    fn padding_fills_up_to_the_next_multiple() {
        let token = Tensor::full(7f32, (1, 4), &Device::Cpu).unwrap();
        for (count, want) in [(1, 32), (32, 32), (33, 64)] {
            let all = pad(&Tensor::zeros((count, 4), DType::F32, &Device::Cpu).unwrap(), &token).unwrap();
            assert_eq!(all.dims(), [1, want, 4]);
            let sum = all.sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert_eq!(sum, 28.0 * (want - count) as f32);
        }
    }
}
