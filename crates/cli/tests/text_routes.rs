//! OpenAI's text routes over real sockets, with models of random weights: what they say means nothing, but its form counts.

#![allow(clippy::unwrap_used)] // a test fails where a value is missing

mod common;

use common::text::{CHAT, COMPLETIONS, EMBEDDINGS, asking, events, given, merged, refusal, said, text_server};
use serde_json::{Value, json};

#[test]
fn an_answer_is_the_same_whole_and_in_pieces() {
    let (_dir, server) = text_server();
    let greedy = asking(json!({"temperature": 0}));
    let whole = given(&server.post(CHAT, &greedy));
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("tiny")));
    let choice = &whole["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["index"]), (&json!("length"), &json!(0)));
    let content = choice["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty() && choice["message"]["role"] == "assistant");
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 24);
    assert_eq!(usage["total_tokens"], usage["prompt_tokens"].as_u64().unwrap() + 24);

    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let pieces = events(&server.post(CHAT, &merged(greedy.clone(), more)));
    assert_eq!(said(&pieces, 0, "content"), content);
    assert_eq!(pieces[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, others) = pieces.split_last().unwrap();
    assert_eq!((&last["usage"], &last["choices"]), (usage, &json!([])));
    assert!(others.iter().all(|piece| piece["usage"].is_null() && piece["object"] == "chat.completion.chunk"));
    assert_eq!(others.last().unwrap()["choices"][0]["finish_reason"], "length");
    let pieces = events(&server.post(CHAT, &merged(greedy, json!({"stream": true, "model": "tiny"}))));
    assert!(pieces.iter().all(|piece| piece.get("usage").is_none()));
    assert_eq!(said(&pieces, 0, "content"), content);
}

#[test]
fn a_seed_decides_and_answer_i_has_the_next_but_i() {
    let (_dir, server) = text_server();
    let ask = |more: Value| given(&server.post(CHAT, &asking(more)));
    let content = |answer: &Value, index: usize| answer["choices"][index]["message"]["content"].clone();
    let several = ask(json!({"seed": 7, "n": 3}));
    let usage = &several["usage"];
    let tokens = usage["completion_tokens"].as_u64().unwrap();
    for (index, seed) in (7..10).enumerate() {
        assert_eq!(content(&several, index), content(&ask(json!({"seed": seed})), 0));
        assert_eq!(several["choices"][index]["index"], index);
    }
    assert_ne!(content(&several, 0), content(&several, 1));
    let single = ask(json!({"seed": 7}));
    assert_eq!(single["usage"]["prompt_tokens"], usage["prompt_tokens"], "a prompt counts once");
    assert!(tokens > single["usage"]["completion_tokens"].as_u64().unwrap());
    let pieces = events(&server.post(CHAT, &asking(json!({"seed": 7, "n": 3, "stream": true}))));
    for index in 0..3 {
        assert_eq!(said(&pieces, index, "content"), content(&several, index).as_str().unwrap());
    }
}

#[test]
fn an_answer_ends_before_a_stop_text_and_at_its_length() {
    let (_dir, server) = text_server();
    let ask = |more: Value| given(&server.post(CHAT, &merged(asking(json!({"temperature": 0})), more)));
    let content = |answer: &Value| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let whole = content(&ask(json!({})));
    let characters: Vec<char> = whole.chars().collect();
    let stop: String = characters[characters.len() / 2..][..3].iter().collect();
    let before = whole.split(&stop).next().unwrap();
    for stop in [json!(stop), json!(["never said", stop])] {
        let stopped = ask(json!({ "stop": stop }));
        assert_eq!((content(&stopped).as_str(), &stopped["choices"][0]["finish_reason"]), (before, &json!("stop")));
        let pieces = events(&server.post(CHAT, &asking(json!({"temperature": 0, "stop": stop, "stream": true}))));
        assert_eq!(said(&pieces, 0, "content"), before);
    }
    for key in ["max_tokens", "max_completion_tokens"] {
        let body = json!({"messages": [{"role": "user", "content": "a"}], key: 3});
        assert_eq!(given(&server.post(CHAT, &body))["usage"]["completion_tokens"], 3, "{key}");
    }
}

#[test]
fn probabilities_are_those_of_the_tokens() {
    let (_dir, server) = text_server();
    let more = json!({"temperature": 0, "logprobs": true, "top_logprobs": 2});
    let whole = given(&server.post(CHAT, &asking(more.clone())));
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    // Tokens without a text, such as the pieces of a character that never came whole, are none of the answer's.
    let made = whole["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    assert!((made / 2..=made).contains(&tokens.len()), "{} of {made}", tokens.len());
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        // Greedy: the likeliest was chosen.
        assert_eq!((top.len(), &top[0]["logprob"]), (2, &token["logprob"]));
        let of = |token: &Value| token["logprob"].as_f64().unwrap();
        assert!(of(&top[0]) <= 0.0 && of(&top[1]) <= of(&top[0]));
        assert_eq!(token["bytes"].as_array().unwrap().len(), token["token"].as_str().unwrap().len());
    }
    let pieces = events(&server.post(CHAT, &merged(asking(more), json!({"stream": true}))));
    let lists = pieces.iter().filter_map(|p| p["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(&lists.flatten().cloned().collect::<Vec<_>>(), tokens);
    assert!(given(&server.post(CHAT, &asking(json!({}))))["choices"][0]["logprobs"].is_null());
}

#[test]
fn what_must_be_json_is() {
    let (_dir, server) = text_server();
    let schema = json!({"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["colour", "count"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "fruit", "strict": true, "schema": schema}});
    for seed in 0..4 {
        let body = asking(json!({"seed": seed, "max_tokens": 200, "response_format": format, "thinking": false}));
        let answer = given(&server.post(CHAT, &body));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        let fruit: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
        assert!(["red", "green"].contains(&fruit["colour"].as_str().unwrap()), "{fruit}");
        assert!((1..100).contains(&fruit["count"].as_i64().unwrap()), "{fruit}");
    }
    // A random model may go on to the end of what it is given; then the text is the beginning of an object.
    let any = json!({"seed": 1, "response_format": {"type": "json_object"}, "thinking": false});
    let object = given(&server.post(CHAT, &asking(any)));
    assert!(object["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'));
    given(&server.post(CHAT, &asking(json!({"response_format": {"type": "text"}}))));
}

#[test]
fn tools_are_called_and_their_answers_read() {
    let (_dir, server) = text_server();
    let parameters =
        json!({"type": "object", "properties": {"town": {"enum": ["Graz", "Linz"]}}, "required": ["town"]});
    let tool = json!({"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": parameters}});
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    let mut made = Vec::new();
    for choice in [json!("required"), named] {
        let more = json!({"seed": 3, "max_tokens": 200, "tools": [tool], "tool_choice": choice});
        let answer = given(&server.post(CHAT, &asking(more.clone())));
        let (message, reason) = (&answer["choices"][0]["message"], &answer["choices"][0]["finish_reason"]);
        assert_eq!((reason, &message["content"]), (&json!("tool_calls"), &Value::Null));
        let call = message["tool_calls"][0].clone();
        assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("get_weather")));
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(["Graz", "Linz"].contains(&arguments["town"].as_str().unwrap()), "{arguments}");
        let pieces = events(&server.post(CHAT, &merged(asking(more), json!({"stream": true}))));
        let calls = pieces.iter().filter_map(|p| p["choices"][0]["delta"]["tool_calls"].as_array()).flatten();
        let calls: Vec<Value> = calls.cloned().collect();
        assert_eq!(calls, [merged(call.clone(), json!({"index": 0}))]);
        made.push(call);
    }
    let id = made[0]["id"].clone();
    let body = json!({"max_tokens": 8, "tools": [tool], "messages": [
        {"role": "user", "content": [{"type": "text", "text": "The weather "}, {"type": "text", "text": "in Graz?"}]},
        {"role": "assistant", "content": null, "tool_calls": [made[0]]},
        {"role": "tool", "tool_call_id": id, "content": "rain"}]});
    given(&server.post(CHAT, &body));
    given(&server.post(CHAT, &asking(json!({"tools": [tool], "tool_choice": "none"}))));
}

#[test]
fn texts_are_continued() {
    let (_dir, server) = text_server();
    let ask =
        |more: Value| given(&server.post(COMPLETIONS, &merged(json!({"prompt": "a red", "temperature": 0}), more)));
    let one = ask(json!({}));
    assert_eq!((&one["object"], &one["usage"]["completion_tokens"]), (&json!("text_completion"), &json!(16)));
    let text = one["choices"][0]["text"].as_str().unwrap();
    assert!(!text.is_empty() && one["choices"][0]["finish_reason"] == "length");
    assert_eq!(ask(json!({"echo": true}))["choices"][0]["text"], format!("a red{text}"));

    let several = ask(json!({"prompt": ["a red", "a green"], "n": 2}));
    let texts: Vec<&str> = several["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!((texts.len(), texts[0], texts[1]), (4, text, text), "greedy");
    assert_eq!(texts[2], ask(json!({"prompt": "a green"}))["choices"][0]["text"]);
    let body = json!({"prompt": ["a red", "a green"], "temperature": 0, "echo": true, "stream": true, "stream_options": {"include_usage": true}});
    let pieces = events(&server.post(COMPLETIONS, &body));
    for (index, begin, text) in [(0, "a red", texts[0]), (1, "a green", texts[2])] {
        let choices = pieces.iter().flat_map(|piece| piece["choices"].as_array().unwrap());
        let own = choices.filter(|c| c["index"] == index).map(|c| c["text"].as_str().unwrap());
        assert_eq!(own.collect::<String>(), format!("{begin}{text}"));
    }
    assert_eq!(pieces.last().unwrap()["usage"]["completion_tokens"], 32);

    let listed = ask(json!({"logprobs": 2}));
    let lists = &listed["choices"][0]["logprobs"];
    let count = lists["tokens"].as_array().unwrap().len();
    assert!((8..=16).contains(&count), "{lists}");
    for list in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[list].as_array().unwrap().len(), count, "{list}");
    }
    let first = lists["tokens"][0].as_str().unwrap();
    assert_eq!(lists["top_logprobs"][0][first], lists["token_logprobs"][0]);
    assert_eq!(lists["text_offset"][1], first.chars().count());

    let stop: String = text.chars().skip(4).take(3).collect();
    let stopped = ask(json!({ "stop": stop }));
    assert_eq!(stopped["choices"][0]["text"], text.split(&stop).next().unwrap());
}

#[test]
fn texts_become_vectors() {
    let (_dir, server) = text_server();
    let ask = |body: Value| given(&server.post(EMBEDDINGS, &body));
    let floats =
        |v: &Value| v["embedding"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect::<Vec<_>>();
    let both = ask(json!({"input": ["a red apple", "a green pear"], "model": "vectors"}));
    assert_eq!((&both["object"], &both["model"]), (&json!("list"), &json!("vectors")));
    let vectors: Vec<Vec<f32>> = both["data"].as_array().unwrap().iter().map(floats).collect();
    assert!(vectors.len() == 2 && vectors[0] != vectors[1] && vectors[0].len() == vectors[1].len());
    let one = ask(json!({"input": "a red apple"}));
    assert_eq!(floats(&one["data"][0]), vectors[0]);
    assert!(one["usage"]["prompt_tokens"].as_u64().unwrap() < both["usage"]["prompt_tokens"].as_u64().unwrap());

    use base64::Engine as _;
    let coded = ask(json!({"input": "a red apple", "encoding_format": "base64"}));
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let decoded: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(decoded, vectors[0]);
    let short = floats(&ask(json!({"input": "a red apple", "dimensions": 4}))["data"][0]);
    let length: f32 = short.iter().map(|v| v * v).sum();
    assert!(short.len() == 4 && (length - 1.0).abs() < 1e-5, "{short:?}");
    for (body, field) in [
        (json!({"input": []}), "input"),
        (json!({"input": [1, 2, 3]}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": "word ".repeat(5000)}), "input"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 100_000}), "dimensions"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "a", "task": "search"}), "task"),
        (json!({}), "input"),
    ] {
        assert_eq!(refusal(&server.post(EMBEDDINGS, &body)), (422, field.to_owned()), "{field}");
    }
    assert_eq!(refusal(&server.post(EMBEDDINGS, &json!({"input": "a", "model": "tiny"}))).0, 404);
}

#[test]
fn models_are_listed_and_chosen_by_name() {
    let (dir, server) = text_server();
    let listed = server.get("/v1/models").json();
    let ids: Vec<&str> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert!(ids.contains(&"tiny") && ids.contains(&"vectors"), "{ids:?}");
    for model in ["gpt-4o", "vectors", "../tiny", ""] {
        let answer = server.post(CHAT, &asking(json!({ "model": model })));
        if model.is_empty() {
            assert_eq!(answer.status, 200)
        } else {
            assert_eq!(refusal(&answer), (404, "model".into()))
        }
    }
    common::text::write_language(&dir.path().join("models"), "second", |_, _| {});
    // The folder is looked at once a second or so.
    let start = std::time::Instant::now();
    while server.post(CHAT, &asking(json!({"model": "second"}))).status != 200 {
        assert!(start.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(refusal(&server.post(CHAT, &asking(json!({})))), (404, "model".into()), "two and no name");
    assert_eq!(given(&server.post(CHAT, &asking(json!({"model": "second"}))))["model"], "second");
}
