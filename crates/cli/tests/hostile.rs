//! Input that is meant to hurt: each is refused with its status, and the server goes on.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::{Answer, Server, demo_graph};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tungstenite::client::IntoClientRequest;

fn server(extra: &[&str]) -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &dir.path().join("models"), extra);
    (dir, server)
}

/// Status and code; no message holds a host path.
fn refusal(answer: &Answer) -> (u16, String) {
    let body = answer.json();
    let message = body["error"]["message"].as_str().unwrap_or_else(|| panic!("{body}"));
    assert!(!message.is_empty() && !message.contains("/tmp") && message.len() < 2000, "{message}");
    (answer.status, body["error"]["code"].as_str().unwrap().to_owned())
}

fn run_of(graph: &Value) -> Value {
    json!({"graph": graph, "target": "m1"})
}

/// A chain of pictures, each made from the one before.
fn chain(length: usize) -> Value {
    let mut nodes = vec![json!({"id": "p1", "type": "input/text", "params": {"text": "a"}})];
    for i in 1..=length {
        let mut inputs = json!({"prompt": {"from": "p1", "output": "text"}});
        if i < length {
            inputs["image"] = json!({"from": format!("m{}", i + 1), "output": "image"});
        }
        nodes.push(
            json!({"id": format!("m{i}"), "type": "inline/demo", "params": {"steps": 1, "seed": 1}, "inputs": inputs}),
        );
    }
    json!({"schemaVersion": 1, "nodes": nodes})
}

#[test]
fn bodies_that_are_not_what_they_should_be_are_refused() {
    let (_dir, server) = server(&["--json-limit-mb", "1", "--asset-limit-mb", "1"]);
    let post = |kind: &str, body: &[u8]| refusal(&server.send("POST", "/v1/runs", &[("content-type", kind)], body));
    for kind in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", "nonsense", ""] {
        assert_eq!(post(kind, b"{}"), (415, "unsupported_media_type".into()), "{kind}");
    }
    assert_eq!(post("application/json; charset=utf-8", b"{}"), (422, "invalid_request".into()));
    let json = |body: &str| post("application/json", body.as_bytes());
    assert_eq!(json(""), (400, "invalid_json".into()));
    assert_eq!(json("[]").0, 422);
    assert_eq!(json(r#"{"target":"m1","meta":{"a":{"b":1,"b":2}},"graph":{}}"#), (400, "invalid_json".into()));
    assert_eq!(post("application/json", b"{\"target\":\"\xff\"}"), (400, "invalid_json".into()));
    let deep = |depth: usize| format!("{{\"meta\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(json(&deep(100_000)), (400, "invalid_json".into()));
    assert_eq!(json(&"{\"a\":".repeat(100_000)), (400, "invalid_json".into()));
    assert_eq!(json(&" ".repeat((1 << 20) + 1)), (413, "too_large".into()));
    let asset = |body: &[u8]| refusal(&server.send("POST", "/v1/assets", &[("content-type", "image/png")], body));
    assert_eq!(asset(&vec![0; (1 << 20) + 1]), (413, "too_large".into()));
    assert_eq!(asset(b""), (422, "invalid_request".into()));
    assert_eq!(refusal(&server.send("POST", "/v1/assets", &[], b"x")), (415, "unsupported_media_type".into()));
    assert_eq!(server.get("/v1/health").status, 200);
}

#[test]
fn a_giant_picture_is_refused_by_its_header() {
    let (_dir, server) = server(&[]);
    let mut giant = Vec::new();
    let mut encoder = png::Encoder::new(&mut giant, 40_000, 40_000);
    encoder.set_color(png::ColorType::Rgba);
    encoder.write_header().unwrap().write_chunk(png::chunk::IDAT, &vec![0; 5_000_000]).unwrap();
    let start = Instant::now();
    let answer = server.send("POST", "/v1/assets", &[("content-type", "image/png")], &giant);
    assert_eq!(refusal(&answer), (413, "too_large".into()));
    // Its 6.4 GB of pixels would take far longer.
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn no_id_or_name_leads_out_of_its_folder() {
    let (dir, server) = server(&[]);
    // What a path that gets out would find.
    std::fs::write(dir.path().join("secret.bin"), b"secret").unwrap();
    for id in [
        "..%2f..%2fsecret.bin",
        "%2e%2e%2f%2e%2e%2fsecret.bin",
        "..%5c..%5csecret",
        "%2fetc%2fpasswd",
        "sha256-..%2f..%2fsecret",
        "%00",
    ] {
        for path in ["/v1/takes/{}", "/v1/takes/{}/bytes", "/v1/assets/{}/bytes", "/v1/runs/{}", "/v1/models/{}"] {
            let path = path.replace("{}", id);
            assert_eq!(refusal(&server.get(&path)), (404, "not_found".into()), "{path}");
        }
        let path = format!("/v1/runs/{id}");
        assert_eq!(refusal(&server.send("DELETE", &path, &[], b"")).0, 404, "{path}");
        let path = format!("/v1/takes?nodeId={id}");
        assert_eq!(server.get(&path).json()["takes"], json!([]), "{path}");
    }
    let with_asset = |asset: Value| {
        let mut graph = demo_graph(json!({"steps": 1, "seed": 1}));
        graph["nodes"][1]["inputs"]["image"] = json!({"from": "i1", "output": "image"});
        let source = json!({"id": "i1", "type": "input/image", "params": {"asset": asset}});
        graph["nodes"].as_array_mut().unwrap().push(source);
        server.post("/v1/runs", &run_of(&graph))
    };
    for id in ["../../secret", "sha256-../../secret", "/etc/passwd", "..\\secret", "a b", ""] {
        for asset in [json!(id), json!({"ref": "asset", "id": id})] {
            let answer = with_asset(asset.clone());
            match answer.status {
                // An empty text means that none is chosen, which the run says.
                201 => assert_eq!(server.wait(answer.json()["runId"].as_str().unwrap())["status"], "error", "{asset}"),
                _ => assert_eq!(refusal(&answer), (422, "invalid_graph".into()), "{asset}"),
            }
        }
    }
    let path = dir.path().join("secret.bin").display().to_string();
    let outside = with_asset(json!({"ref": "path", "path": path}));
    let state = server.wait(outside.json()["runId"].as_str().unwrap());
    let message = state["error"]["message"].as_str().unwrap();
    assert!(message.contains("not allowed") && !message.contains("secret"), "{message}");

    let mut graph = demo_graph(json!({"steps": 1, "seed": 1}));
    graph["nodes"][1]["type"] = json!("alibaba/z-image-turbo");
    graph["nodes"][1]["params"] = json!({"model": "../../secret.bin"});
    assert_eq!(refusal(&server.post("/v1/runs", &run_of(&graph))), (422, "invalid_graph".into()));

    // A node's name is never a file's: this one is only a name.
    let mut graph = demo_graph(json!({"steps": 1, "seed": 1}));
    graph["nodes"][1]["id"] = json!("../../m1");
    let answer = server.post("/v1/runs", &json!({"graph": graph, "target": "../../m1"}));
    let state = server.wait(answer.json()["runId"].as_str().unwrap());
    let uri = state["takes"][0]["uri"].as_str().unwrap();
    assert!(!uri.contains(".."), "{uri}");
    assert!(dir.path().join("data/takes").join(uri).is_file());
}

#[test]
fn allowed_folders_are_not_left_through_links_or_dots() {
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    let picture = std::fs::read(conformance::recipe::fixtures().join("demo-golden/golden_0.png")).unwrap();
    for path in ["outside.png", "open/inside.png"] {
        std::fs::write(dir.path().join(path), &picture).unwrap();
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(dir.path().join("outside.png"), open.join("link.png")).unwrap();
    let (data, models) = (dir.path().join("data"), dir.path().join("models"));
    let server = Server::start(&data, &models, &["--allow-path", open.to_str().unwrap()]);
    let status = |name: &str| {
        let mut graph = demo_graph(json!({"steps": 1, "seed": 1}));
        graph["nodes"][1]["inputs"]["image"] = json!({"from": "i1", "output": "image"});
        let path = open.join(name).display().to_string();
        let source = json!({"id": "i1", "type": "input/image", "params": {"asset": {"ref": "path", "path": path}}});
        graph["nodes"].as_array_mut().unwrap().push(source);
        server.wait(&server.submit(graph))["status"].clone()
    };
    assert_eq!(status("inside.png"), "done");
    for name in ["../outside.png", "link.png", "../open/../outside.png"] {
        assert_eq!(status(name), "error", "{name}");
    }
}

#[test]
fn large_graphs_and_prompts_are_answered_in_time() {
    let (_dir, server) = server(&[]);
    let start = Instant::now();
    let long = server.post("/v1/runs", &run_of(&chain(20_000)));
    assert_eq!(long.status, 201, "{}", long.json());
    let long = long.json()["runId"].as_str().unwrap().to_owned();
    let cancelled = server.send("DELETE", &format!("/v1/runs/{long}"), &[], b"");
    assert_eq!(cancelled.status, 200);
    assert_eq!(server.wait(&long)["status"], "cancelled");
    let mut ring = chain(20_000);
    ring["nodes"][20_000]["inputs"]["image"] = json!({"from": "m1", "output": "image"});
    assert_eq!(refusal(&server.post("/v1/runs", &run_of(&ring))), (422, "invalid_graph".into()));
    let mut twice = chain(2);
    twice["nodes"][2]["id"] = json!("m1");
    assert_eq!(refusal(&server.post("/v1/runs", &run_of(&twice))), (422, "invalid_graph".into()));

    // Only what the target needs is run.
    let mut wide = demo_graph(json!({"steps": 1, "seed": 1}));
    let more = (0..10_000).map(|i| json!({"id": format!("t{i}"), "type": "input/text", "params": {"text": "x"}}));
    wide["nodes"].as_array_mut().unwrap().extend(more);
    let state = server.wait(&server.submit(wide));
    assert_eq!((&state["status"], state["nodes"].as_object().unwrap().len()), (&json!("done"), 2));

    let mut prompt = demo_graph(json!({"steps": 1, "seed": 1}));
    prompt["nodes"][0]["params"]["text"] = json!("a red apple ".repeat((1 << 20) / 12));
    let state = server.wait(&server.submit(prompt));
    assert!(["done", "error"].contains(&state["status"].as_str().unwrap()));
    assert!(state["error"].is_null() || state["error"]["message"].as_str().unwrap().len() < 500, "{}", state["error"]);
    assert_eq!(server.get("/v1/health").status, 200);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// Sends `head`, then a byte now and then, and gives what the server says and after how long.
fn trickle(server: &Server, head: &str, gap: Duration) -> (String, Duration) {
    let mut stream = TcpStream::connect(server.base.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(gap)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    let (start, mut said) = (Instant::now(), Vec::new());
    while start.elapsed() < Duration::from_secs(20) {
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => said.extend(&bytes[..count]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                if stream.write_all(b"a").is_err() {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    (String::from_utf8_lossy(&said).into_owned(), start.elapsed())
}

#[test]
fn slow_senders_are_given_up() {
    let (_dir, server) = server(&["--request-timeout-s", "1"]);
    let body =
        "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let (said, after) = trickle(&server, body, Duration::from_secs(3));
    assert!(said.starts_with("HTTP/1.1 408") && said.contains("\"code\":\"timeout\""), "{said}");
    assert!(after < Duration::from_secs(10), "{after:?}");
    // A head that never ends, though something comes all the time.
    let (said, after) = trickle(&server, "GET /v1/health HTTP/1.1\r\nx: ", Duration::from_millis(200));
    assert!(!said.contains("200 OK") && after < Duration::from_secs(10), "{after:?} {said}");
    // And a body that trickles in, a byte before every deadline.
    let (said, after) = trickle(&server, body, Duration::from_millis(500));
    assert!(said.starts_with("HTTP/1.1 408") && after < Duration::from_secs(15), "{after:?} {said}");
    assert_eq!(server.get("/v1/health").status, 200);
}

#[test]
fn pages_of_other_origins_get_nothing() {
    let (_dir, server) = server(&["--allow-origin", "https://studio.example"]);
    let run = server.submit(demo_graph(json!({"steps": 1, "seed": 1})));
    server.wait(&run);
    let socket = |origin: &str| {
        let url = format!("{}/v1/runs/{run}/events", server.base.replace("http:", "ws:"));
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert("origin", origin.parse().unwrap());
        match tungstenite::connect(request) {
            Ok(_) => 101,
            Err(tungstenite::Error::Http(answer)) => answer.status().as_u16(),
            Err(error) => panic!("{error}"),
        }
    };
    let ask = |method: &str, origin: &str| {
        let preflight =
            [("access-control-request-method", "POST"), ("access-control-request-headers", "authorization")];
        let headers = [&[("origin", origin)][..], if method == "OPTIONS" { &preflight[..] } else { &[] }].concat();
        server.send(method, "/v1/runs", &headers, b"")
    };
    for origin in ["https://evil.example", "http://studio.example", "https://studio.example.evil", "null", "*"] {
        assert_eq!(socket(origin), 403, "{origin}");
        assert_eq!(refusal(&ask("GET", origin)), (403, "forbidden_origin".into()));
        for method in ["GET", "OPTIONS"] {
            assert_eq!(ask(method, origin).header("access-control-allow-origin"), "", "{method} {origin}");
        }
    }
    for origin in ["https://studio.example", "http://localhost:5173"] {
        assert_eq!(socket(origin), 101, "{origin}");
        for method in ["GET", "OPTIONS"] {
            let answer = ask(method, origin);
            assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, origin), "{method}");
        }
    }
    // A name that another site could point here.
    let borrowed = server.send("GET", "/v1/health", &[("host", "evil.example:8848")], b"");
    assert_eq!(refusal(&borrowed), (403, "forbidden_host".into()));
}

#[test]
fn tokens_are_asked_for_everywhere_but_on_the_page() {
    let (_dir, server) = server(&["--token", "secret"]);
    let with = |path: &str, value: &str| server.send("GET", path, &[("authorization", value)], b"").status;
    for path in ["/v1/health", "/v1/runs", "/v1/models", "/v1/takes", "/metrics", "/openapi.json", "/nothing"] {
        assert_eq!(server.get(path).status, 401, "{path}");
        for value in ["secret", "Basic secret", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer Secret"]
        {
            assert_eq!(with(path, value), 401, "{path} {value}");
        }
    }
    assert_eq!(with("/v1/health", "Bearer secret"), 200);
    // The query is for websockets only, whose browsers can't send the header.
    assert_eq!(server.get("/v1/health?token=secret").status, 401);
    let socket = |query: &str| {
        tungstenite::connect(format!("{}/v1/runs/none/events{query}", server.base.replace("http:", "ws:"))).is_ok()
    };
    assert!(socket("?token=secret") && !socket("?token=wrong") && !socket(""));
    let page = server.get("/docs");
    assert_eq!((page.status, page.header("content-type")), (200, "text/html; charset=utf-8"));
}

#[test]
fn the_document_names_every_method_and_the_page_needs_nothing_from_elsewhere() {
    let (_dir, server) = server(&[]);
    let document = server.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        let asked = path.replace("{id}", "x").replace("{type}", "x/y");
        for method in ["get", "post", "put", "patch", "delete"] {
            let answer = server.send(&method.to_uppercase(), &asked, &[], b"");
            assert_eq!(answer.status == 405, methods.get(method).is_none(), "{method} {path}: {}", answer.status);
        }
    }
    let page = String::from_utf8(server.get("/docs").body).unwrap();
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("//cdn"));
}
