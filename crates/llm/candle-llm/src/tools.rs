//! Tools: how a model is told of them, and how its calls are read.

use crate::constraint::compact;
use crate::schema;
use core_llm::{Error, Message, MessageRole, Result, TextLlmRequest, ToolCall, ToolChoice};
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Map, Value, json};

/// How a model writes its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolStyle {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen do.
    Tagged,
    /// An answer that is `{"name": …, "parameters": {…}}` or a list of those, as Llama 3 and Mistral do.
    Bare,
    /// `<function=…><parameter=…>…</parameter></function>` within the tags, as Qwen3-Coder does.
    Xml,
}

impl ToolStyle {
    /// The style that a chat template teaches.
    pub(crate) fn of_template(mentions: impl Fn(&str) -> bool) -> Self {
        if mentions("<function=") {
            Self::Xml
        } else if mentions("<tool_call>") || !mentions("tools") {
            Self::Tagged
        } else {
            Self::Bare
        }
    }

    /// What opens a call; an answer is one from its beginning where there is nothing.
    pub(crate) fn opening(self) -> Option<&'static str> {
        (self != Self::Bare).then_some(OPEN)
    }

    fn arguments(self) -> &'static str {
        if self == Self::Bare { "parameters" } else { "arguments" }
    }
}

pub(crate) const OPEN: &str = "<tool_call>";
pub(crate) const CLOSE: &str = "</tool_call>";

/// The tools of a request, to read calls by.
#[derive(Debug, Clone)]
pub(crate) struct Tools {
    pub(crate) style: ToolStyle,
    tools: Vec<Value>,
    /// Makes the ids of calls, which are the same for the same request.
    stamp: u64,
}

impl Tools {
    /// Those of a request whose prompt is `tokens`; `None` if it offers none.
    pub(crate) fn of(request: &TextLlmRequest, style: ToolStyle, tokens: &[u32]) -> Option<Self> {
        let tools = request.offered_tools().to_vec();
        // FNV-1a (Fowler, Noll and Vo) over prompt and seed.
        let seed = request.seed.to_le_bytes().into_iter();
        let bytes = tokens.iter().flat_map(|token| token.to_le_bytes()).chain(seed);
        let stamp = bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        (!tools.is_empty()).then_some(Self { style, tools, stamp })
    }

    fn function(&self, name: &str) -> Option<&Value> {
        self.tools.iter().map(|tool| &tool["function"]).find(|function| function["name"] == name)
    }

    /// The calls that `text` makes, of which `before` were made earlier in the answer; `None` if it is no call of these
    /// tools.
    pub(crate) fn read(&self, text: &str, before: usize) -> Option<Vec<ToolCall>> {
        let calls = match self.style {
            ToolStyle::Xml => read_xml(text, |name| self.function(name)),
            _ => read_json(text),
        }?;
        let known = calls.iter().all(|(name, _)| self.function(name).is_some());
        let made = calls.into_iter().enumerate().map(|(index, (name, arguments))| {
            let id = format!("call_{:012x}{:02x}", self.stamp >> 16, before + index);
            ToolCall { id, name, arguments }
        });
        known.then(|| made.collect())
    }

    /// Refuses tools that can't be called.
    ///
    /// # Errors
    /// A tool's parameters are no JSON schema that has documents.
    pub(crate) fn check(&self) -> Result<()> {
        for function in self.tools.iter().map(|tool| &tool["function"]) {
            let Some(parameters) = function.get("parameters").filter(|p| !p.is_null()) else { continue };
            let refused = |problem| format!("the parameters' schema of {} {problem}", function["name"]);
            schema::check(parameters).map_err(|problem| Error::invalid("tools", refused(problem)))?;
        }
        Ok(())
    }

    /// A grammar of one call, of the tool called `only` if given.
    pub(crate) fn grammar(&self, only: Option<&str>) -> TopLevelGrammar {
        let mut rules = String::new();
        let mut names = Vec::new();
        let chosen = self.tools.iter().filter(|tool| only.is_none_or(|name| tool["function"]["name"] == name));
        for (index, tool) in chosen.enumerate() {
            let function = &tool["function"];
            let name = function["name"].as_str().unwrap_or_default();
            let parameters = closed(function.get("parameters").cloned().unwrap_or_default());
            let rule = format!("call{index}");
            match self.style {
                ToolStyle::Xml => rules.push_str(&xml_rule(&rule, name, &parameters)),
                style => {
                    let head = json!(format!("{{\"name\": \"{name}\", \"{}\": ", style.arguments()));
                    rules.push_str(&format!("{rule}: {head} {rule}_arguments \"}}\"\n"));
                    rules.push_str(&format!("{rule}_arguments: %json {}\n", compact(parameters)));
                }
            }
            names.push(rule);
        }
        let any = names.join(" | ");
        let start = match self.style {
            ToolStyle::Bare => format!("start: {any}\n"),
            _ => format!("start: \"{OPEN}\\n\" ({any}) \"\\n{CLOSE}\"\n"),
        };
        TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(start + &rules))
    }
}

/// A schema of arguments that takes no others than it names.
fn closed(mut schema: Value) -> Value {
    if schema.is_null() {
        schema = json!({});
    }
    if let Some(object) = schema.as_object_mut() {
        object.entry("type").or_insert(json!("object"));
        object.entry("properties").or_insert(json!({}));
        object.entry("additionalProperties").or_insert(json!(false));
    }
    schema
}

/// A call in XML: parameters in their order, those that aren't required left out or not.
fn xml_rule(rule: &str, name: &str, parameters: &Value) -> String {
    let required: Vec<&str> =
        parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (mut order, mut rules) = (String::new(), String::new());
    let empty = Map::new();
    for (index, (key, schema)) in parameters["properties"].as_object().unwrap_or(&empty).iter().enumerate() {
        let parameter = format!("{rule}_{index}");
        let optional = if required.contains(&key.as_str()) { "" } else { "?" };
        order.push_str(&format!(" {parameter}{optional}"));
        let head = json!(format!("<parameter={key}>\n"));
        if is_text(schema) {
            rules.push_str(&format!("{parameter}: {head} {parameter}_text\n"));
            let least = schema["minLength"].as_u64().unwrap_or(0);
            let most = schema["maxLength"].as_u64().map_or(String::new(), |most| most.to_string());
            let text = format!("{parameter}_text[suffix=\"\\n</parameter>\\n\"]: /(.|\\n){{{least},{most}}}/\n");
            rules.push_str(&text);
        } else {
            let mut schema = schema.clone();
            // References mean the schema of all parameters.
            for key in ["$defs", "definitions"] {
                if let (Some(object), Some(defs)) = (schema.as_object_mut(), parameters.get(key)) {
                    object.entry(key).or_insert_with(|| defs.clone());
                }
            }
            rules.push_str(&format!("{parameter}: {head} {parameter}_json \"\\n</parameter>\\n\"\n"));
            rules.push_str(&format!("{parameter}_json: %json {}\n", compact(schema)));
        }
    }
    let head = json!(format!("<function={name}>\n"));
    format!("{rule}: {head}{order} \"</function>\"\n{rules}")
}

fn is_text(schema: &Value) -> bool {
    schema["type"] == "string" && schema.get("enum").is_none() && schema.get("const").is_none()
}

type Call = (String, Value);

/// One call or a list of calls as JSON.
fn read_json(text: &str) -> Option<Vec<Call>> {
    let whole = match serde_json::from_str(text.trim()).ok()? {
        Value::Array(calls) => calls,
        call => vec![call],
    };
    let calls: Option<Vec<Call>> = whole.into_iter().map(read_call).collect();
    calls.filter(|calls| !calls.is_empty())
}

fn read_call(mut call: Value) -> Option<Call> {
    let name = call.get("name")?.as_str()?.to_owned();
    let object = call.as_object_mut()?;
    let arguments = object.remove("arguments").or_else(|| object.remove("parameters")).unwrap_or_else(|| json!({}));
    let arguments = match arguments {
        Value::String(text) => serde_json::from_str(&text).ok()?,
        Value::Null => json!({}),
        other => other,
    };
    arguments.is_object().then_some((name, arguments))
}

/// Calls in XML. A value is text or JSON, as its parameter's schema says.
fn read_xml<'a>(text: &str, function: impl Fn(&str) -> Option<&'a Value>) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = rest.strip_prefix("<function=")?.split_once('>')?;
        let (mut body, after) = after.split_once("</function>").unwrap_or((after, ""));
        let properties = function(name).map(|f| &f["parameters"]["properties"]);
        let mut arguments = Map::new();
        while let Some((_, parameter)) = body.split_once("<parameter=") {
            let (key, value) = parameter.split_once('>')?;
            let (value, after) = value.split_once("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let wants_text = properties.is_some_and(|p| p[key]["type"] == "string");
            let read = if wants_text { None } else { serde_json::from_str(value).ok() };
            arguments.insert(key.to_owned(), read.unwrap_or_else(|| json!(value)));
            body = after;
        }
        calls.push((name.to_owned(), Value::Object(arguments)));
        rest = after.trim();
    }
    (!calls.is_empty()).then_some(calls)
}

/// A message as chat templates read it.
pub(crate) fn message_json(message: &Message) -> Value {
    let mut json = json!({ "role": message.role, "content": message.text() });
    if let Some(thinking) = &message.thinking {
        json["reasoning_content"] = json!(thinking);
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &ToolCall| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        };
        json["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    if let Some(id) = &message.tool_call_id {
        json["tool_call_id"] = json!(id);
    }
    json
}

/// For templates that know no tools: what Hermes' template would have said, in messages that any template takes.
pub(crate) fn in_plain_words(messages: &[Message], tools: &[Value], choice: &ToolChoice) -> Vec<Message> {
    let mut plain: Vec<Message> = messages.iter().map(plain_message).collect();
    if tools.is_empty() {
        return plain;
    }
    let list: Vec<String> = tools.iter().map(Value::to_string).collect();
    let must = match choice {
        ToolChoice::Required => " Answer with a call.".to_owned(),
        ToolChoice::Named(name) => format!(" Answer with a call of {name}."),
        _ => String::new(),
    };
    let words = format!(
        "You may call functions to help with the request. These are available, one JSON description a line:\n<tools>\n{}\n</tools>\n\n\
         To call one, write a JSON object with its name and arguments within {OPEN} tags:\n{OPEN}\n\
         {{\"name\": <name>, \"arguments\": <arguments>}}\n{CLOSE}\n{must}",
        list.join("\n")
    );
    match plain.first_mut().filter(|first| first.role == MessageRole::System) {
        Some(system) => *system = Message::system(format!("{}\n\n{}", system.text(), words.trim_end())),
        None => plain.insert(0, Message::system(words.trim_end())),
    }
    plain
}

fn plain_message(message: &Message) -> Message {
    if message.role == MessageRole::Tool {
        return Message::user(format!("<tool_response>\n{}\n</tool_response>", message.text()));
    }
    if message.tool_calls.is_empty() {
        return message.clone();
    }
    let call =
        |call: &ToolCall| format!("{OPEN}\n{}\n{CLOSE}", json!({"name": call.name, "arguments": call.arguments}));
    let calls: Vec<String> = message.tool_calls.iter().map(call).collect();
    let text = message.text();
    let text = if text.is_empty() { calls.join("\n") } else { format!("{text}\n{}", calls.join("\n")) };
    Message { thinking: message.thinking.clone(), ..Message::new(message.role, text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(style: ToolStyle) -> Tools {
        let parameters = json!({"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"enum": ["C", "F"]}
        }, "required": ["city"]});
        let tool = json!({"type": "function", "function": {"name": "weather", "parameters": parameters}});
        let request = TextLlmRequest { tools: vec![tool], ..TextLlmRequest::new(vec![Message::user("?")], 8) };
        Tools::of(&request, style, &[1, 2, 3]).unwrap()
    }

    #[test]
    fn calls_of_every_style_are_read() {
        let expected = json!({"city": "Oslo", "days": 2});
        for (style, text) in [
            (ToolStyle::Tagged, "\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}\n"),
            (ToolStyle::Tagged, r#"{"name": "weather", "arguments": "{\"city\": \"Oslo\", \"days\": 2}"}"#),
            (ToolStyle::Bare, r#"{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}"#),
            (ToolStyle::Bare, r#"[{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]"#),
            (
                ToolStyle::Xml,
                "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n",
            ),
        ] {
            let calls = tools(style).read(text, 0).unwrap();
            assert_eq!((calls[0].name.as_str(), &calls[0].arguments), ("weather", &expected), "{text}");
            assert_eq!(tools(style).read(text, 0).unwrap(), calls);
            assert_ne!(tools(style).read(text, 1).unwrap()[0].id, calls[0].id);
        }
        for text in
            ["", "{}", "hello", r#"{"name": "other", "arguments": {}}"#, r#"{"name": "weather", "arguments": 3}"#]
        {
            assert_eq!(tools(ToolStyle::Tagged).read(text, 0), None, "{text}");
        }
        assert_eq!(tools(ToolStyle::Xml).read("<function=weather>\n<parameter=city>\nOslo", 0), None);
    }

    #[test]
    fn the_style_is_the_templates() {
        let style = |template: &str| ToolStyle::of_template(|text| template.contains(text));
        assert_eq!(style("{{ messages }}"), ToolStyle::Tagged);
        assert_eq!(style("{% if tools %}<tool_call>"), ToolStyle::Tagged);
        assert_eq!(style("{% if tools %}<tool_call><function=name>"), ToolStyle::Xml);
        assert_eq!(style("{% if tools %}Respond with JSON"), ToolStyle::Bare);
    }

    #[test]
    fn templates_without_tools_are_told_in_words() {
        let asked = vec![
            Message::system("Be brief."),
            Message::user("Weather?"),
            Message {
                tool_calls: vec![ToolCall {
                    id: "1".into(),
                    name: "weather".into(),
                    arguments: json!({"city": "Oslo"}),
                }],
                ..Message::assistant("")
            },
            Message { tool_call_id: Some("1".into()), ..Message::new(MessageRole::Tool, "sunny") },
        ];
        let tools = tools(ToolStyle::Tagged).tools;
        let told = in_plain_words(&asked, &tools, &ToolChoice::Auto);
        assert!(told[0].text().starts_with("Be brief.\n\n") && told[0].text().contains("\"weather\""));
        assert_eq!(
            told[2].text(),
            "<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Oslo\"}}\n</tool_call>"
        );
        assert_eq!((told[3].role, told[3].text().contains("sunny")), (MessageRole::User, true));
        assert_eq!(in_plain_words(&asked[1..], &tools, &ToolChoice::Auto)[0].role, MessageRole::System);
    }
}
