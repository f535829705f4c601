//! Who may ask: the bearer token, and pages of other origins.

use crate::{ApiError, AppState};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

/// Compares without telling by its duration how much was right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

/// Whether a request comes from a page that this server doesn't trust. Programs send no `Origin`; a page that does must
/// have been served from this machine or from the host that it talks to.
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let Some(host) = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, host)| host) else { return true };
    let asked = headers.get(header::HOST).and_then(|h| h.to_str().ok());
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| if port.bytes().all(|b| b.is_ascii_digit()) { name } else { host });
    let local = ["localhost", "127.0.0.1", "[::1]"].contains(&name);
    !(local || asked == Some(host))
}

pub(crate) async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Result<Response, ApiError> {
    let headers = request.headers();
    if is_foreign(headers) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "forbidden_origin",
            "pages of other origins may not use this engine",
        ));
    }
    if let Some(token) = &state.token {
        let given =
            headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(|v| v.strip_prefix("Bearer "));
        // Browsers can't set headers on a websocket, so its token may come in the query.
        let in_query = request.uri().query().and_then(|q| q.split('&').find_map(|p| p.strip_prefix("token=")));
        let is_event_stream = headers.contains_key(header::UPGRADE);
        let given = given.or(in_query.filter(|_| is_event_stream));
        if !given.is_some_and(|given| same(given.as_bytes(), token.as_bytes())) {
            return Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "send the engine's token as `Authorization: Bearer …`",
            ));
        }
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(origin: &str, host: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, origin.parse().unwrap());
        headers.insert(header::HOST, host.parse().unwrap());
        is_foreign(&headers)
    }

    #[test]
    fn pages_of_this_machine_and_of_the_same_host_are_trusted() {
        assert!(!foreign("http://localhost:3000", "127.0.0.1:8848"));
        assert!(!foreign("http://[::1]:3000", "127.0.0.1:8848"));
        assert!(!foreign("http://studio.lan:8848", "studio.lan:8848"));
        assert!(foreign("https://evil.example", "127.0.0.1:8848"));
        assert!(foreign("http://localhost.evil.example", "127.0.0.1:8848"));
        assert!(foreign("null", "127.0.0.1:8848"));
        assert!(!is_foreign(&HeaderMap::new()));
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"abc", b"abc") && !same(b"abc", b"abd") && !same(b"abc", b"ab"));
    }
}
