//! OpenAI's image routes over real sockets.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{Answer, Server};
use serde_json::{Value, json};
use std::io::Cursor;

fn server() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), &[]);
    (dir, server)
}

fn rgb(png: &[u8]) -> (u32, u32, Vec<u8>) {
    let mut reader = png::Decoder::new(Cursor::new(png)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    (info.width, info.height, bytes)
}

fn png(width: u32, height: u32, color: png::ColorType, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(bytes).unwrap();
    out
}

/// A form's body: texts, and files with the name that a browser would send.
fn form(texts: &[(&str, &str)], files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, text) in texts {
        body.extend(format!("--cut\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n").bytes());
    }
    for (name, file) in files {
        let head = format!("--cut\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"a.png\"\r\n");
        body.extend(format!("{head}Content-Type: image/png\r\n\r\n").bytes());
        body.extend(*file);
        body.extend(b"\r\n");
    }
    body.extend(b"--cut--\r\n");
    body
}

fn edit(server: &Server, texts: &[(&str, &str)], files: &[(&str, &[u8])]) -> Answer {
    let kind = [("content-type", "multipart/form-data; boundary=cut")];
    server.send("POST", "/v1/images/edits", &kind, &form(texts, files))
}

/// Status, code and the field that it is about.
fn refused(answer: &Answer) -> (u16, String, Value) {
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error", "{error}");
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{error}");
    (answer.status, error["code"].as_str().unwrap().to_owned(), error["param"].clone())
}

fn base64(text: &Value) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap()
}

#[test]
fn pictures_come_as_addresses_and_as_bytes() {
    let (_dir, server) = server();
    let ask = |more: Value| {
        let mut body = json!({"prompt": "a red apple", "steps": 2, "seed": 5, "n": 2, "size": "64x96"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/images/generations", &body)
    };
    let by_url = ask(json!({"user": "somebody"}));
    assert_eq!(by_url.status, 200, "{}", by_url.json());
    let by_url = by_url.json();
    assert!(by_url["created"].as_i64().unwrap() > 1_600_000_000);
    let pictures = by_url["data"].as_array().unwrap();
    assert_eq!(pictures.iter().map(|p| p["seed"].clone()).collect::<Vec<_>>(), [json!(5), json!(6)]);
    let bytes: Vec<Vec<u8>> = pictures
        .iter()
        .map(|p| server.get(p["url"].as_str().unwrap().strip_prefix(&server.base).unwrap()).body)
        .collect();
    assert_eq!((rgb(&bytes[0]).0, rgb(&bytes[0]).1), (64, 96));
    assert_ne!(bytes[0], bytes[1]);
    let run = server.get(&format!("/v1/runs/{}", pictures[0]["runId"].as_str().unwrap())).json();
    assert_eq!((&run["status"], &run["meta"]["user"]), (&json!("done"), &json!("somebody")));

    let by_value = ask(json!({"response_format": "b64_json", "model": "inline/demo"})).json();
    for (picture, bytes) in by_value["data"].as_array().unwrap().iter().zip(&bytes) {
        assert!(base64(&picture["b64_json"]) == *bytes && picture.get("url").is_none());
    }
}

#[test]
fn a_repeated_request_with_its_key_gives_the_first_pictures() {
    let (_dir, server) = server();
    let ask = |seed: i64| {
        let body = json!({"prompt": "a", "steps": 1, "size": "64x64", "seed": seed}).to_string();
        server.send("POST", "/v1/images/generations", &[("idempotency-key", "k1")], body.as_bytes())
    };
    assert_eq!(ask(-1).json()["data"], ask(-1).json()["data"]);
    assert_eq!(refused(&ask(7)).0, 409);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let (_dir, server) = server();
    let ask = |body: Value| refused(&server.post("/v1/images/generations", &body));
    for (field, value) in [
        ("style", json!("vivid")),
        ("quality", json!("hd")),
        ("background", json!("transparent")),
        ("moderation", json!("low")),
        ("stream", json!(true)),
        ("no_such", Value::Null),
    ] {
        let (status, _, param) = ask(json!({"prompt": "a", field: value}));
        assert_eq!((status, param), (422, json!(field)));
    }
    let wrong = [
        (json!({"prompt": 7}), "prompt"),
        (json!({}), "prompt"),
        (json!({"prompt": "a", "n": 0}), "n"),
        (json!({"prompt": "a", "n": 11}), "n"),
        (json!({"prompt": "a", "n": "2"}), "n"),
        (json!({"prompt": "a", "size": "1024x1024"}), "size"),
        (json!({"prompt": "a", "size": "65x64"}), "size"),
        (json!({"prompt": "a", "size": "big"}), "size"),
        (json!({"prompt": "a", "response_format": "png"}), "response_format"),
        (json!({"prompt": "a", "output_format": "webp"}), "output_format"),
        (json!({"prompt": "a", "seed": -2}), "seed"),
        (json!({"prompt": "a", "steps": 1000}), "steps"),
        (json!({"prompt": "a", "guidance": 99.0}), "guidance"),
        (json!({"prompt": "a", "strength": 0.5}), "strength"),
    ];
    for (body, field) in wrong {
        let (status, _, param) = ask(body.clone());
        assert_eq!((status, param), (422, json!(field)), "{body}");
    }
    for model in ["dall-e-3", "input/text", "../../etc/passwd", ""] {
        let (status, code, param) = ask(json!({"prompt": "a", "model": model}));
        assert_eq!((status, code.as_str(), param), (404, "model_not_found", json!("model")), "{model}");
    }
    let raw = |headers: &[(&str, &str)], body: &[u8]| {
        refused(&server.send("POST", "/v1/images/generations", headers, body)).0
    };
    assert_eq!(raw(&[], br#"{"prompt":"a","prompt":"b"}"#), 400);
    assert_eq!(raw(&[("content-type", "text/plain")], br#"{"prompt":"a"}"#), 415);
    assert_eq!(server.get("/v1/runs?limit=5").json()["runs"], json!([]));
}

#[test]
fn edits_paint_what_is_transparent_and_keep_the_rest() {
    let (_dir, server) = server();
    let (width, height) = (96, 64);
    let picture: Vec<u8> = (0..width * height).flat_map(|i| [(i % width * 2) as u8, 120, 200]).collect();
    let opaque = png(width, height, png::ColorType::Rgb, &picture);
    let alpha = |hole: bool| {
        let pixels = picture.chunks(3).enumerate().flat_map(|(i, rgb)| {
            let inside = hole && (i as u32 % width) < width / 2;
            [rgb[0], rgb[1], rgb[2], if inside { 0 } else { 255 }]
        });
        png(width, height, png::ColorType::Rgba, &pixels.collect::<Vec<_>>())
    };
    let texts = [("prompt", "a red apple"), ("steps", "3"), ("seed", "1"), ("response_format", "b64_json")];
    let pixels = |answer: Answer| {
        assert_eq!(answer.status, 200, "{}", answer.json());
        rgb(&base64(&answer.json()["data"][0]["b64_json"]))
    };
    let masked = pixels(edit(&server, &texts, &[("image", &opaque), ("mask", &alpha(true))]));
    assert_eq!((masked.0, masked.1), (width, height));
    let left = |i: usize| (i / 3) % (width as usize) < width as usize / 2;
    let same = |keep: bool| (0..picture.len()).filter(|i| left(*i) != keep && masked.2[*i] == picture[*i]).count();
    let half = picture.len() / 2;
    assert_eq!(same(true), half, "what the mask keeps is bit-identical");
    assert!(same(false) < half / 2, "what it opens is painted anew");

    // Without a mask, the picture's own hole; and then the whole picture.
    assert_eq!(pixels(edit(&server, &texts, &[("image", &alpha(true))])).2.len(), picture.len());
    assert_ne!(pixels(edit(&server, &texts, &[("image[]", &opaque)])).2, picture);

    let refused = |texts: &[(&str, &str)], files: &[(&str, &[u8])]| {
        let (status, _, param) = refused(&edit(&server, texts, files));
        (status, param.as_str().unwrap_or_default().to_owned())
    };
    let expect = |status: u16, param: &str| (status, param.to_owned());
    assert_eq!(refused(&texts, &[]), expect(422, "image"));
    assert_eq!(refused(&[], &[("image", &opaque)]), expect(422, "prompt"));
    assert_eq!(refused(&texts, &[("image", b"no picture")]), expect(422, "image"));
    assert_eq!(refused(&texts, &[("image", &opaque), ("image", &opaque)]), expect(422, "image"));
    assert_eq!(refused(&texts, &[("image", &opaque), ("mask", &opaque)]), expect(422, "mask"));
    assert_eq!(refused(&texts, &[("image", &opaque), ("mask", &alpha(false))]), expect(422, "mask"));
    let small = png(1, 1, png::ColorType::Rgba, &[0, 0, 0, 0]);
    assert_eq!(refused(&texts, &[("image", &opaque), ("mask", &small)]), expect(422, "mask"));
    let more = [&texts[..], &[("input_fidelity", "high")]].concat();
    assert_eq!(refused(&more, &[("image", &opaque)]), expect(422, "input_fidelity"));
    let json = server.post("/v1/images/edits", &json!({"prompt": "a"}));
    assert_eq!(json.status, 415);
    let cut = &form(&texts, &[("image", &opaque)])[..300];
    let kind = [("content-type", "multipart/form-data; boundary=cut")];
    assert_eq!(server.send("POST", "/v1/images/edits", &kind, cut).status, 400);
}
