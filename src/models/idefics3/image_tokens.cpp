#include "models/idefics3/image_tokens.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string_view>

#include "models/idefics3/image_text.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/text/conversation.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models::idefics3 {

namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Words, digits and punctuation marks; a space belongs to what follows.
int64_t count_word_pieces(std::string_view text) {
  int64_t num_pieces = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ' ') num_pieces += i == 0 || !is_letter(text[i]) || !is_letter(text[i - 1]);
  }
  return num_pieces;
}

/// `added_tokens`: the tokens that stand for markers; nothing: all markers have one.
int64_t count_without_tokenizer(std::string_view text, const std::optional<nlohmann::json>& added_tokens) {
  int64_t tokens = 0;
  while (!text.empty()) {
    if (text.front() == '\n') {
      text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
      ++tokens;
      continue;
    }
    if (text.front() != '<') {
      const std::string_view plain_text = text.substr(0, text.find_first_of("<\n"));
      tokens += count_word_pieces(plain_text);
      text.remove_prefix(plain_text.size());
      continue;
    }
    const std::string_view marker = text.substr(0, text.find('>') + 1);
    const bool is_token = !added_tokens || marker == text::kImagePlaceholder || added_tokens->contains(marker);
    tokens += is_token ? 1 : count_word_pieces(marker);
    text.remove_prefix(marker.size());
  }
  return tokens;
}

}  // namespace

int64_t count_tokens(std::string_view text, const std::filesystem::path& folder) {
  const auto tokenizer = folder / "tokenizer.json";
  if (std::filesystem::exists(tokenizer)) return std::ssize(text::read_tokenizer(folder).encode(text).ids);
  const auto path = folder / "added_tokens.json";
  std::optional<nlohmann::json> added_tokens;
  if (std::filesystem::exists(path)) {
    added_tokens = io::read_json(path);
    if (!added_tokens->is_object()) throw data_error("{}: not a JSON object of tokens and ids", path.string());
  }
  return count_without_tokenizer(text, added_tokens);
}

int64_t count_image_text(TileGrid grid, int64_t image_tokens_per_tile, const std::filesystem::path& folder) {
  return count_tokens(format_image_text(grid, image_tokens_per_tile), folder);
}

}  // namespace vlmtrain::models::idefics3
