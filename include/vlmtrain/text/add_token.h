#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vlmtrain::text {

/// The content of a tokenizer.json, and the id of a token in it.
struct AddTokenResult {
  std::string json;
  int64_t id;
};

/// `json` with `token` among its added tokens, with the id behind the highest: neither special, so that decoding keeps
/// it, nor normalised. The rest of the text is as it was; all of it is where a text of nothing but `token` is that one
/// token already. UserError (kBadData) as Tokenizer::from_json.
AddTokenResult add_token(const std::string& json, const std::string& token, const std::string& source_name);

}  // namespace vlmtrain::text
