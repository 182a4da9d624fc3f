#include "fuzz/input.h"
#include "vlmtrain/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const auto tokenizer = vlmtrain::text::Tokenizer::from_json(vlmtrain::fuzz::to_text(data, size), "input");
    for (const char* text :
         {"", "Where is the lesion? <image>\n", "a\xCC\x8A 12 \xF0\x9F\xA9\xBA  x", "aaaaaaaaaaaaaaaaaaaa!"}) {
      const auto encoding = tokenizer.encode(text);
      tokenizer.decode(encoding.ids, /*skip_special_tokens=*/false);
      for (const int64_t id : encoding.ids) tokenizer.id_to_token(id);
    }
    tokenizer.vocab_size();
  });
  return 0;
}
