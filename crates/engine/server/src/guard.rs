//! Who may ask: the bearer token, and pages of other origins.

use crate::{ApiError, AppState};
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use subtle::ConstantTimeEq;

/// Compares without telling by its duration how much was right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_this_machine(host: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].contains(&name_of(host))
}

/// Whether pages of an origin may use this server: those that the operator names, those of this machine, and those that
/// were served from the host that they talk to.
pub(crate) fn is_trusted(origin: &HeaderValue, headers: &HeaderMap, allowed: &[String]) -> bool {
    let Ok(origin) = origin.to_str() else { return false };
    let Some((_, host)) = origin.split_once("://") else { return false };
    let asked = headers.get(header::HOST).and_then(|h| h.to_str().ok());
    is_this_machine(host) || asked == Some(host) || allowed.iter().any(|allowed| allowed == origin)
}

/// Whether the name by which a server on the loopback address is called can be another site's, pointed here to make its
/// pages pass for this server's own. Addresses can't be.
fn is_borrowed_name(headers: &HeaderMap, allowed: &[String]) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|h| h.to_str().ok()) else { return false };
    let name = name_of(host);
    let is_address = name.starts_with('[') || name.parse::<std::net::Ipv4Addr>().is_ok();
    let is_allowed = || allowed.iter().any(|o| o.split_once("://").is_some_and(|(_, h)| name_of(h) == name));
    !(is_address || is_this_machine(host) || is_allowed())
}

pub(crate) async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Result<Response, ApiError> {
    let headers = request.headers();
    if headers.get(header::ORIGIN).is_some_and(|origin| !is_trusted(origin, headers, &state.origins)) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "forbidden_origin",
            "pages of other origins may not use this engine",
        ));
    }
    if state.local_names_only && is_borrowed_name(headers, &state.origins) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "forbidden_host",
            "this engine isn't known by that name; use its address, set a token, or allow the origin",
        ));
    }
    // The page that shows the API says nothing of what is behind it.
    if let Some(token) = state.token.as_ref().filter(|_| request.uri().path() != crate::openapi::PAGE) {
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

    fn headers(host: &str) -> HeaderMap {
        [(header::HOST, host.parse().unwrap())].into_iter().collect()
    }

    fn foreign(origin: &str, host: &str) -> bool {
        !is_trusted(&origin.parse().unwrap(), &headers(host), &["https://studio.example".to_owned()])
    }

    #[test]
    fn names_that_could_be_another_site_are_not_this_server() {
        let borrowed = |host: &str| is_borrowed_name(&headers(host), &["https://studio.example".to_owned()]);
        assert!(!borrowed("localhost:8848") && !borrowed("127.0.0.1") && !borrowed("[::1]:8848"));
        assert!(!borrowed("192.168.1.7:8848") && !borrowed("studio.example"));
        assert!(borrowed("evil.example:8848") && borrowed("127.0.0.1.evil.example") && borrowed("localhost.evil"));
    }

    #[test]
    fn pages_of_this_machine_and_of_the_same_host_are_trusted() {
        assert!(!foreign("http://localhost:3000", "127.0.0.1:8848"));
        assert!(!foreign("http://[::1]:3000", "127.0.0.1:8848"));
        assert!(!foreign("http://studio.lan:8848", "studio.lan:8848"));
        assert!(foreign("https://evil.example", "127.0.0.1:8848"));
        assert!(foreign("http://localhost.evil.example", "127.0.0.1:8848"));
        assert!(foreign("null", "127.0.0.1:8848"));
        assert!(!foreign("https://studio.example", "127.0.0.1:8848"));
        assert!(foreign("http://studio.example", "127.0.0.1:8848"));
        assert!(foreign("https://studio.example:444", "127.0.0.1:8848"));
    }

    #[test]
    fn tokens_are_compared_whole() {
        assert!(same(b"abc", b"abc") && !same(b"abc", b"abd") && !same(b"abc", b"ab"));
    }
}
