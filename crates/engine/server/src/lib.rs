//! The /v1 API: routes, websocket and safety rules.
