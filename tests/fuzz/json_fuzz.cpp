#include "fuzz/input.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = vlmtrain::fuzz::to_text(data, size);
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const auto value = vlmtrain::io::parse_json(text, "input");
    const std::string serialized = vlmtrain::io::to_json_string(value);
    if (vlmtrain::io::parse_json(serialized, "written") != value) std::abort();
    vlmtrain::io::make_json_excerpt(value);
    vlmtrain::fuzz::expect_accepted_or_rejected([&] {
      const auto rle = vlmtrain::io::parse_rle(value);
      const auto counts_text = vlmtrain::io::encode_rle_counts(rle);
      if (vlmtrain::io::parse_rle({{"size", value["size"]}, {"counts", counts_text}}) != rle) std::abort();
    });
    for (const char* key : {"a", "b"}) {
      vlmtrain::fuzz::expect_accepted_or_rejected([&] { vlmtrain::io::get_or<int64_t>(value, key, 0, "input"); });
      vlmtrain::fuzz::expect_accepted_or_rejected([&] { vlmtrain::io::get_or<uint8_t>(value, key, 0, "input"); });
      vlmtrain::fuzz::expect_accepted_or_rejected([&] { vlmtrain::io::get_or<double>(value, key, 0, "input"); });
      vlmtrain::fuzz::expect_accepted_or_rejected(
          [&] { vlmtrain::io::get_or<std::vector<std::string>>(value, key, {}, "input"); });
    }
  });
  vlmtrain::fuzz::expect_accepted_or_rejected([&] { vlmtrain::io::parse_ordered_json(text, "input"); });
  if (vlmtrain::io::try_parse_json(text).has_value() != nlohmann::json::accept(text) &&
      !vlmtrain::io::is_json_too_deep(text)) {
    std::abort();
  }
  return 0;
}
