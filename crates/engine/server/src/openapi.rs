//! The API's document, generated from the handlers and the types that they read and write, and a page that shows it.

use crate::error::ErrorBody;
use crate::{events, metrics, models, openai, runs};
use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};
use std::sync::LazyLock;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::{Modify, OpenApi};

/// Where the page is.
pub(crate) const PAGE: &str = "/docs";
/// The page needs nothing but itself and this server.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";

#[derive(OpenApi)]
#[openapi(
    info(title = "inline", description = "Typed node graphs in, immutable takes out."),
    paths(
        models::health, models::list, models::get, models::upload, models::asset_bytes,
        runs::list, runs::submit, runs::get, runs::cancel, runs::list_takes, runs::get_take, runs::take_bytes,
        events::events, metrics::page, document, page,
        openai::images::generations, openai::edits::edits,
        openai::chat::completions, openai::completions::completions, openai::embeddings::embeddings,
    ),
    components(schemas(ErrorBody)),
    modifiers(&Bearer),
)]
struct Document;

/// The token, where one is set.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = document.components.get_or_insert_with(Default::default);
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
        let none = SecurityRequirement::default();
        document.security = Some(vec![none, SecurityRequirement::new("token", Vec::<String>::new())]);
    }
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "engine", responses((status = 200, body = Object)))]
pub(crate) async fn document() -> Json<&'static utoipa::openapi::OpenApi> {
    static DOCUMENT: LazyLock<utoipa::openapi::OpenApi> = LazyLock::new(Document::openapi);
    Json(&DOCUMENT)
}

/// A page that shows this document, without anything from elsewhere.
#[utoipa::path(get, path = "/docs", tag = "engine",
    responses((status = 200, body = String, content_type = "text/html")))]
pub(crate) async fn page() -> Response {
    let policy = (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    ([policy], Html(include_str!("openapi.html"))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_in_the_document_and_the_other_way_round() {
        // The router doesn't list its routes; its debug output does, each between quotes.
        let router = format!("{:?}", crate::routes());
        let routed: BTreeSet<String> = router
            .split('"')
            .filter(|text| text.starts_with('/'))
            // What answers where there is no route.
            .filter(|text| *text != "/" && !text.contains("fallback"))
            .map(|route| route.replace("{*node_type}", "{type}"))
            .collect();
        let documented: BTreeSet<String> = Document::openapi().paths.paths.into_keys().collect();
        assert!(routed.len() > 10, "{router}");
        assert_eq!(routed, documented);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = Document::openapi().to_json().unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let references = text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next());
        assert_eq!(references.filter(|path| document.pointer(path).is_none()).collect::<Vec<_>>(), [""; 0]);
    }
}
