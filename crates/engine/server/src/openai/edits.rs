//! `POST /v1/images/edits`: a picture, and with a mask only its transparent part, painted anew.

use super::images::{ImageBody, Sources, checked_size, image_node, sides, submit, wanted_size};
use super::pictures::{Answer, answer};
use super::{OpenAiError, parse};
use crate::body::read as read_body;
use crate::models::checked_picture;
use crate::{ApiError, AppState};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use engine_graph::NodeDescriptor;
use engine_runs::picture;
use serde_json::{Map, Value};

/// The files of a form.
#[derive(Default)]
struct Files {
    image: Option<Bytes>,
    mask: Option<Bytes>,
}

/// The form of an edit.
#[derive(utoipa::ToSchema)]
#[allow(dead_code)] // for the document; `form` reads it
pub(crate) struct EditForm {
    /// The picture.
    #[schema(value_type = String, format = Binary)]
    image: Vec<u8>,
    /// A picture of the same size whose transparent part is painted anew; the picture's own when left out.
    #[schema(value_type = Option<String>, format = Binary)]
    mask: Option<Vec<u8>>,
    #[schema(inline)]
    #[serde(flatten)]
    fields: ImageBody,
}

/// Paints a picture anew, or with a mask its transparent part, and waits for the result.
#[utoipa::path(post, path = "/v1/images/edits", tag = "openai",
    request_body(content = EditForm, content_type = "multipart/form-data"),
    responses((status = 200, body = Answer), (status = 404, body = crate::error::ErrorBody),
        (status = 413, body = crate::error::ErrorBody), (status = 415, body = crate::error::ErrorBody),
        (status = 422, body = crate::error::ErrorBody)))]
pub(crate) async fn edits(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Answer>, OpenAiError> {
    let boundary = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| multer::parse_boundary(value).ok())
        .ok_or_else(|| {
            let message = "send a form as multipart/form-data with the picture as its field image";
            ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
        })?;
    let bytes = read_body(body, state.limits.asset, &state.limits).await?;
    let (fields, files) = form(bytes, boundary).await?;
    let body: ImageBody = parse(fields)?;
    let node = image_node(&state, body.model.as_deref()).await?;
    let image = files.image.ok_or_else(|| OpenAiError::field("image", "the field 'image' is missing"))?;
    let seen = look(image, files.mask).await?;
    let size = match wanted_size(body.size.as_deref())? {
        Some(size) => checked_size(&node, size)?,
        None => fitted(&node, seen.size),
    };
    let engine = state.engine();
    let mut sources = Sources { image: Some(engine.add_asset(seen.image, "image/png").await?.id), mask: None };
    if let Some(mask) = seen.mask {
        sources.mask = Some(engine.add_asset(mask, "image/png").await?.id);
    }
    let runs = submit(&state, &headers, &body, &node, Some(size), &sources).await?;
    answer(&state, &headers, runs, body.response_format.unwrap_or_default()).await.map(Json)
}

/// The texts and files of a form.
async fn form(bytes: Bytes, boundary: String) -> Result<(Map<String, Value>, Files), OpenAiError> {
    let broken = |_| ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", "the form is not well-formed multipart");
    let stream = futures::stream::once(async move { Ok::<_, std::convert::Infallible>(bytes) });
    let mut form = multer::Multipart::new(stream, boundary);
    let (mut fields, mut files) = (Map::new(), Files::default());
    while let Some(field) = form.next_field().await.map_err(broken)? {
        let name = field.name().unwrap_or_default().to_owned();
        let twice = || OpenAiError::field(name.clone(), format!("the field '{name}' may come once"));
        let file = match name.as_str() {
            // One client sends a list of one.
            "image" | "image[]" => Some(&mut files.image),
            "mask" => Some(&mut files.mask),
            _ => None,
        };
        if let Some(file) = file {
            if file.replace(field.bytes().await.map_err(broken)?).is_some() {
                return Err(twice());
            }
            continue;
        }
        let text = field.text().await.map_err(broken)?;
        if fields.insert(name.clone(), form_value(&name, text)).is_some() {
            return Err(twice());
        }
    }
    Ok((fields, files))
}

/// A form has texts only; what is a number in JSON becomes one.
fn form_value(name: &str, text: String) -> Value {
    let is_number = ["n", "steps", "guidance", "strength", "seed"].contains(&name);
    let number = is_number.then(|| text.parse::<serde_json::Number>().ok()).flatten();
    number.map_or(Value::String(text), Value::Number)
}

/// Pictures that were looked at.
struct Seen {
    image: Vec<u8>,
    size: (u32, u32),
    /// White where the picture is to be painted anew.
    mask: Option<Vec<u8>>,
}

/// Reads the picture and the mask; without a mask, the picture's own transparent part is to be painted.
async fn look(image: Bytes, mask: Option<Bytes>) -> Result<Seen, OpenAiError> {
    let work = move || {
        let image = image.to_vec();
        let size = checked_picture(&image).map_err(|error| about("image", error))?;
        let of = mask.as_deref().unwrap_or(&image);
        let found = picture::edit_mask(of).map_err(|error| about("mask", error.into()))?;
        if let Some(mask) = &mask {
            let found = found.ok_or_else(|| {
                OpenAiError::field("mask", "the mask has no transparent part; make transparent what is to be painted")
            })?;
            if checked_picture(mask).map_err(|error| about("mask", error))? != size {
                return Err(OpenAiError::field("mask", "the mask must have the picture's size"));
            }
            return Ok(Seen { image, size, mask: Some(found) });
        }
        Ok(Seen { image, size, mask: found })
    };
    let unreadable = |_| OpenAiError::field("image", "the picture can't be read");
    tokio::task::spawn_blocking(work).await.map_err(unreadable)?
}

fn about(field: &str, error: ApiError) -> OpenAiError {
    OpenAiError { error, param: Some(field.to_owned()) }
}

/// The size nearest to a picture's own that the node can paint, in about its proportions.
fn fitted(node: &NodeDescriptor, (width, height): (u32, u32)) -> (u32, u32) {
    let (min, max, multiple) = sides(node);
    let longest = f64::from(width.max(height));
    let shortest = f64::from(width.min(height)).max(1.0);
    let scale = (f64::from(max) / longest).min(1.0).max((f64::from(min) / shortest).min(f64::from(max) / longest));
    let side = |pixels: u32| {
        let rounded = (f64::from(pixels) * scale / f64::from(multiple)).round() as u32 * multiple;
        rounded.clamp(min.next_multiple_of(multiple), max - max % multiple)
    };
    (side(width), side(height))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_graph::ParamDescriptor;

    #[test]
    fn the_size_follows_the_picture_within_what_the_node_paints() {
        let width = ParamDescriptor::integer("width", "Width", 128, 64..=512, 64).multiple_of(16);
        let node = NodeDescriptor::new("a/b", "B").param(width);
        assert_eq!(fitted(&node, (128, 96)), (128, 96));
        assert_eq!(fitted(&node, (130, 90)), (128, 96));
        assert_eq!(fitted(&node, (2000, 1000)), (512, 256));
        assert_eq!(fitted(&node, (1, 1)), (64, 64));
        assert_eq!(fitted(&node, (10, 5)), (128, 64));
        assert_eq!(fitted(&node, (20000, 10)), (512, 64));
    }

    #[test]
    fn numbers_in_a_form_become_numbers() {
        assert_eq!(form_value("n", "2".into()), serde_json::json!(2));
        assert_eq!(form_value("n", "two".into()), serde_json::json!("two"));
        assert_eq!(form_value("prompt", "2".into()), serde_json::json!("2"));
    }
}
