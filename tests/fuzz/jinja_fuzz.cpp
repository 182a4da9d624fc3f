#include "fuzz/input.h"
#include "text/jinja/template.h"

namespace {

using vlmtrain::text::jinja::Value;

Value turn(const char* role, Value content) {
  return Value::dict({{"role", Value::text(role)}, {"content", std::move(content)}});
}

const std::vector<std::pair<std::string, Value>>& variables() {
  static const std::vector<std::pair<std::string, Value>> made = {
      {"messages",
       Value::list({turn("system", Value::text("Größe", 0)),
                    turn("user", Value::list({Value::dict({{"type", Value::text("image")}})})),
                    turn("assistant", Value::text("<think>a</think>\n b", 1)), turn("user", Value::text("", 2))})},
      {"tools", Value::none()},
      {"add_generation_prompt", Value(true)},
      {"bos_token", Value::text("<s>")},
      {"eos_token", Value::text("</s>")},
      {"n", Value(7)},
      {"f", Value(2.5)},
  };
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_taken_or_refused([&] {
    const auto parsed = vlmtrain::text::jinja::Template::parse(vlmtrain::fuzz::text_of(data, size), "input");
    const auto rendering = parsed.render(variables(), {"2026-11-22"});
    size_t end = 0;
    for (const auto& run : rendering.runs) {
      if (run.begin < end || run.end < run.begin || run.end > rendering.text.size()) std::abort();
      end = run.end;
    }
    if (!vlmtrain::is_utf8(rendering.text)) std::abort();
  });
  return 0;
}
