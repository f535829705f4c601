//! Immutable files with ETag and ranges (RFC 9110).

use crate::ApiError;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};

/// Bytes `start..=end` of a file.
type Span = (u64, u64);

/// The one range that a `Range` header asks for: `Ok(None)` to send everything, an error when it can't be satisfied.
fn span(value: &str, length: u64) -> Result<Option<Span>, ()> {
    let Some(spec) = value.strip_prefix("bytes=") else { return Ok(None) };
    // Several ranges would need a multipart answer; sending everything is allowed instead.
    if spec.contains(',') {
        return Ok(None);
    }
    let Some((first, last)) = spec.trim().split_once('-') else { return Ok(None) };
    let number = |text: &str| text.parse::<u64>();
    match (first.is_empty(), last.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => match number(last) {
            Ok(0) => Err(()),
            Ok(_) if length == 0 => Err(()),
            Ok(suffix) => Ok(Some((length.saturating_sub(suffix), length - 1))),
            Err(_) => Ok(None),
        },
        (false, _) => {
            let Ok(first) = number(first) else { return Ok(None) };
            let last = if last.is_empty() { Ok(u64::MAX) } else { number(last) };
            let Ok(last) = last else { return Ok(None) };
            if first > last {
                return Ok(None);
            }
            if first >= length { Err(()) } else { Ok(Some((first, last.min(length - 1)))) }
        }
    }
}

/// Answers with the file, or the range or 304 that the request asks for.
pub(crate) async fn serve(path: &Path, mime: &str, hash: &str, asked: &HeaderMap) -> Result<Response, ApiError> {
    let gone = |error: std::io::Error| {
        tracing::error!(%error, path = %path.display(), "a stored file can't be read");
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "storage_failed",
            "the bytes can't be read; see the engine's log",
        )
    };
    let etag = format!("\"{hash}\"");
    let mut headers = HeaderMap::new();
    let set = |headers: &mut HeaderMap, name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(&mut headers, header::ETAG, &etag);
    set(&mut headers, header::CONTENT_TYPE, mime);
    set(&mut headers, header::ACCEPT_RANGES, "bytes");
    set(&mut headers, header::CACHE_CONTROL, "private, max-age=31536000, immutable");
    set(&mut headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    if crate::models::matches(asked, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    let mut file = tokio::fs::File::open(path).await.map_err(gone)?;
    let length = file.metadata().await.map_err(gone)?.len();
    let still_same = asked.get(header::IF_RANGE).is_none_or(|v| v.as_bytes() == etag.as_bytes());
    let range = asked.get(header::RANGE).and_then(|v| v.to_str().ok()).filter(|_| still_same);
    let span = match range.map_or(Ok(None), |value| span(value, length)) {
        Ok(span) => span,
        Err(()) => {
            set(&mut headers, header::CONTENT_RANGE, &format!("bytes */{length}"));
            let error =
                ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "invalid_range", format!("there are {length} bytes"));
            let mut response = error.into_response();
            response
                .headers_mut()
                .extend(headers.into_iter().filter(|(name, _)| name.as_ref() == Some(&header::CONTENT_RANGE)));
            return Ok(response);
        }
    };
    let (start, end) = span.unwrap_or((0, length.saturating_sub(1)));
    let count = if length == 0 { 0 } else { end - start + 1 };
    file.seek(SeekFrom::Start(start)).await.map_err(gone)?;
    let mut bytes = Vec::with_capacity(count as usize);
    file.take(count).read_to_end(&mut bytes).await.map_err(gone)?;
    let status = match span {
        Some((start, end)) => {
            set(&mut headers, header::CONTENT_RANGE, &format!("bytes {start}-{end}/{length}"));
            StatusCode::PARTIAL_CONTENT
        }
        None => StatusCode::OK,
    };
    Ok((status, headers, Body::from(bytes)).into_response())
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn ranges_are_read_as_the_rfc_has_them() {
        assert_eq!(span("bytes=0-4", 10), Ok(Some((0, 4))));
        assert_eq!(span("bytes=5-", 10), Ok(Some((5, 9))));
        assert_eq!(span("bytes=5-500", 10), Ok(Some((5, 9))));
        assert_eq!(span("bytes=-3", 10), Ok(Some((7, 9))));
        assert_eq!(span("bytes=-30", 10), Ok(Some((0, 9))));
        for whole in ["items=0-4", "bytes=4-2", "bytes=a-b", "bytes=0-1,3-4", "bytes=-", "bytes=5"] {
            assert_eq!(span(whole, 10), Ok(None), "{whole}");
        }
        for impossible in ["bytes=10-", "bytes=-0"] {
            assert_eq!(span(impossible, 10), Err(()), "{impossible}");
        }
    }
}
