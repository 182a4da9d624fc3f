#include "fuzz/input.h"
#include "text/jinja/template.h"

namespace {

using vlmtrain::text::jinja::Value;

Value make_message(const char* role, Value content) {
  return Value::dict({{"role", Value::text(role)}, {"content", std::move(content)}});
}

const std::vector<std::pair<std::string, Value>>& make_variables() {
  static const std::vector<std::pair<std::string, Value>> values = {
      {"messages", Value::list({make_message("system", Value::text("Größe", 0)),
                                make_message("user", Value::list({Value::dict({{"type", Value::text("image")}})})),
                                make_message("assistant", Value::text("<think>a</think>\n b", 1)),
                                make_message("user", Value::text("", 2))})},
      {"tools", Value::none()},
      {"add_generation_prompt", Value(true)},
      {"bos_token", Value::text("<s>")},
      {"eos_token", Value::text("</s>")},
      {"n", Value(7)},
      {"f", Value(2.5)},
  };
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const auto chat_template = vlmtrain::text::jinja::Template::parse(vlmtrain::fuzz::to_text(data, size), "input");
    const auto rendering = chat_template.render(make_variables(), {"2026-11-22"});
    size_t end = 0;
    for (const auto& origin_span : rendering.origin_spans) {
      if (origin_span.begin < end || origin_span.end < origin_span.begin || origin_span.end > rendering.text.size())
        std::abort();
      end = origin_span.end;
    }
    if (!vlmtrain::is_utf8(rendering.text)) std::abort();
  });
  return 0;
}
