#include "fuzz/input.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/rle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = vlmtrain::fuzz::text_of(data, size);
  vlmtrain::fuzz::expect_taken_or_refused([&] {
    const auto value = vlmtrain::io::parse_json(text, "input");
    const std::string written = vlmtrain::io::json_text(value);
    if (vlmtrain::io::parse_json(written, "written") != value) std::abort();
    vlmtrain::io::json_excerpt(value);
    vlmtrain::fuzz::expect_taken_or_refused([&] {
      const auto rle = vlmtrain::io::parse_rle(value);
      const auto text_of_counts = vlmtrain::io::compressed_counts(rle);
      if (vlmtrain::io::parse_rle({{"size", value["size"]}, {"counts", text_of_counts}}) != rle) std::abort();
    });
    for (const char* key : {"a", "b"}) {
      vlmtrain::fuzz::expect_taken_or_refused([&] { vlmtrain::io::get_or<int64_t>(value, key, 0, "input"); });
      vlmtrain::fuzz::expect_taken_or_refused([&] { vlmtrain::io::get_or<uint8_t>(value, key, 0, "input"); });
      vlmtrain::fuzz::expect_taken_or_refused([&] { vlmtrain::io::get_or<double>(value, key, 0, "input"); });
      vlmtrain::fuzz::expect_taken_or_refused(
          [&] { vlmtrain::io::get_or<std::vector<std::string>>(value, key, {}, "input"); });
    }
  });
  vlmtrain::fuzz::expect_taken_or_refused([&] { vlmtrain::io::parse_ordered_json(text, "input"); });
  if (vlmtrain::io::json_of(text).has_value() != nlohmann::json::accept(text) &&
      !vlmtrain::io::is_json_too_deep(text)) {
    std::abort();
  }
  return 0;
}
