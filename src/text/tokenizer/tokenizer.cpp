#include "vlmtrain/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <utility>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/pipeline.h"
#include "text/unicode/characters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::text {

/// A post-processor of tokenizer.json, which adds special tokens before and after an encoded text.
/// Immutable and thread-safe.
class PostProcessor {
 public:
  PostProcessor() = default;
  PostProcessor(const PostProcessor&) = delete;
  PostProcessor& operator=(const PostProcessor&) = delete;
  virtual ~PostProcessor() = default;

  /// Adds the tokens to `encoding`, with the offsets that Encoding::starts specifies.
  virtual void post_process(Encoding& encoding) const = 0;
};

/// Returns the post-processor that `node` describes: ByteLevel, TemplateProcessing or Sequence.
/// Throws UserError (kBadData) for other types.
std::unique_ptr<PostProcessor> make_post_processor(const JsonNode& node);

namespace {

/// The post-processor ByteLevel, which does nothing here. In `tokenizers` it excludes white space
/// from offsets, but Encoding::starts includes it.
class ByteLevelPostProcessor : public PostProcessor {
 public:
  void post_process(Encoding&) const override {}
};

/// The post-processor TemplateProcessing with its template for a single text (not for pairs).
class TemplateProcessing : public PostProcessor {
 public:
  TemplateProcessing(std::vector<int64_t> prefix_token_ids, std::vector<int64_t> suffix_token_ids)
      : prefix_token_ids_(std::move(prefix_token_ids)), suffix_token_ids_(std::move(suffix_token_ids)) {}

  void post_process(Encoding& encoding) const override {
    const uint32_t first_token_start = encoding.starts.empty() ? 0 : encoding.starts.front();
    const uint32_t last_token_start = encoding.starts.empty() ? 0 : encoding.starts.back();
    encoding.ids.insert(encoding.ids.begin(), prefix_token_ids_.begin(), prefix_token_ids_.end());
    encoding.ids.insert(encoding.ids.end(), suffix_token_ids_.begin(), suffix_token_ids_.end());
    encoding.starts.insert(encoding.starts.begin(), prefix_token_ids_.size(), first_token_start);
    encoding.starts.insert(encoding.starts.end(), suffix_token_ids_.size(), last_token_start);
  }

 private:
  std::vector<int64_t> prefix_token_ids_;
  std::vector<int64_t> suffix_token_ids_;
};

/// The post-processor Sequence, which applies several post-processors in order.
class PostProcessorSequence : public PostProcessor {
 public:
  explicit PostProcessorSequence(std::vector<std::unique_ptr<PostProcessor>> post_processors)
      : post_processors_(std::move(post_processors)) {}

  void post_process(Encoding& encoding) const override {
    for (const auto& post_processor : post_processors_) post_processor->post_process(encoding);
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> post_processors_;
};

std::unique_ptr<PostProcessor> make_byte_level_post_processor(const JsonNode&) {
  return std::make_unique<ByteLevelPostProcessor>();
}

std::unique_ptr<PostProcessor> make_template_processing(const JsonNode& node) {
  std::vector<int64_t> prefix_token_ids;
  std::vector<int64_t> suffix_token_ids;
  size_t num_sequences = 0;
  for (const JsonNode& item : node.get_list("single")) {
    if (item.has_key("Sequence")) {
      ++num_sequences;
      continue;
    }
    const JsonNode special_token = item.at("SpecialToken");
    const JsonNode token = node.at("special_tokens").at(special_token.get_string("id"));
    for (const JsonNode& id : token.get_list("ids"))
      (num_sequences == 0 ? prefix_token_ids : suffix_token_ids).push_back(id.integer());
  }
  if (num_sequences != 1) throw node.at("single").error("must have one Sequence, but has {}", num_sequences);
  return std::make_unique<TemplateProcessing>(std::move(prefix_token_ids), std::move(suffix_token_ids));
}

std::unique_ptr<PostProcessor> make_post_processor_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<PostProcessor>> post_processors;
  for (const JsonNode& post_processor : node.get_list("processors"))
    post_processors.push_back(make_post_processor(post_processor));
  return std::make_unique<PostProcessorSequence>(std::move(post_processors));
}

constexpr std::array<ComponentFactory<PostProcessor>, 3> kPostProcessorFactories{{
    {"ByteLevel", make_byte_level_post_processor},
    {"TemplateProcessing", make_template_processing},
    {"Sequence", make_post_processor_sequence},
}};

/// Throws UserError (kBadData) if `text` is not UTF-8.
void check_utf8(std::string_view text) {
  if (const auto pos = find_invalid_utf8(text)) {
    throw data_error("a text is not valid UTF-8 at byte {} of {}; convert it to UTF-8 or drop it", *pos, text.size());
  }
}

}  // namespace

std::unique_ptr<PostProcessor> make_post_processor(const JsonNode& node) {
  return make_component<PostProcessor>(node, kPostProcessorFactories);
}

/// The components of a tokenizer.
struct Tokenizer::Impl {
  Impl(const JsonNode& root, std::span<const ExternalToken> external_tokens)
      : normalizer(make_optional_component(root, "normalizer", &make_normalizer)),
        pre_tokenizer(make_optional_component(root, "pre_tokenizer", &make_pre_tokenizer)),
        model(root.at("model")),
        post_processor(make_optional_component(root, "post_processor", &make_post_processor)),
        decoder(make_optional_component(root, "decoder", &make_decoder)),
        added_tokens(root, model.vocabulary(), normalizer.get(), external_tokens) {}

  /// The result and the buffers of one call of encode().
  struct EncodeState {
    Encoding out;
    Bpe::Workspace bpe_workspace;
    std::vector<BpeToken> tokens;
  };

  static void append_token(EncodeState& encode_state, uint32_t id, uint32_t start) {
    encode_state.out.ids.push_back(id);
    encode_state.out.starts.push_back(start);
  }

  /// Appends the tokens of `text`, which is normalized and has no added tokens.
  void encode_normalized_text(AlignedText text, EncodeState& encode_state) const {
    PreTokenizedText pre_tokenized{std::move(text), {}};
    pre_tokenized.pieces.push_back({0, pre_tokenized.text.bytes.size()});
    if (pre_tokenizer) pre_tokenizer->pre_tokenize(pre_tokenized);
    for (const ByteRange& piece : pre_tokenized.pieces) {
      encode_state.tokens.clear();
      model.encode(std::string_view(pre_tokenized.text.bytes).substr(piece.begin, piece.end - piece.begin),
                   encode_state.bpe_workspace, encode_state.tokens);
      for (const BpeToken& token : encode_state.tokens) {
        append_token(encode_state, token.id, pre_tokenized.text.original_offsets[piece.begin + token.begin]);
      }
    }
  }

  /// Encodes original text between added tokens. `begin` is its offset in the original text.
  void encode_segment(std::string_view segment, uint32_t begin, EncodeState& encode_state) const {
    AlignedText text = AlignedText::from_original_text(segment, begin);
    if (normalizer) normalizer->normalize(text);
    for (const auto& [range, token] : added_tokens.split_normalized_text(text.bytes)) {
      if (token != nullptr) {
        append_token(encode_state, token->id, text.original_offsets[range.begin]);
        continue;
      }
      AlignedText piece_text;
      piece_text.append(text, range.begin, range.end);
      encode_normalized_text(std::move(piece_text), encode_state);
    }
  }

  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  Bpe model;
  std::unique_ptr<PostProcessor> post_processor;
  std::unique_ptr<Decoder> decoder;
  AddedTokens added_tokens;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_file(const std::filesystem::path& tokenizer_json,
                               std::span<const std::string> extra_special_tokens) {
  return from_json(read_tokenizer_json(tokenizer_json), tokenizer_json.string(), extra_special_tokens);
}

Tokenizer Tokenizer::from_json(std::string_view json_text, const std::string& source_name,
                               std::span<const std::string> extra_special_tokens) {
  std::vector<ExternalToken> external_tokens;
  for (const std::string& token : extra_special_tokens)
    external_tokens.push_back({.content = token, .source = source_name});
  return from_json_with_external_tokens(json_text, source_name, external_tokens);
}

Tokenizer Tokenizer::from_json_with_external_tokens(std::string_view json_text, const std::string& source_name,
                                                    std::span<const ExternalToken> external_tokens) {
  const nlohmann::json document = io::parse_json(json_text, source_name);
  return Tokenizer(std::make_unique<const Impl>(JsonNode(document, source_name), external_tokens));
}

Encoding Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  VLMTRAIN_CHECK(text.size() < std::numeric_limits<uint32_t>::max(), "texts of 4 GiB and more are not supported");
  check_utf8(text);
  Impl::EncodeState encode_state;
  for (const auto& [range, token] : impl_->added_tokens.split_original_text(text)) {
    const auto begin = static_cast<uint32_t>(range.begin);
    if (token != nullptr) {
      Impl::append_token(encode_state, token->id, begin);
    } else {
      impl_->encode_segment(text.substr(range.begin, range.end - range.begin), begin, encode_state);
    }
  }
  if (add_special_tokens && impl_->post_processor) impl_->post_processor->post_process(encode_state.out);
  return std::move(encode_state.out);
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const int64_t id : ids) {
    const AddedToken* added_token = impl_->added_tokens.find(id);
    if (added_token != nullptr && added_token->special && skip_special_tokens) continue;
    const std::string_view token =
        added_token != nullptr ? added_token->matched_text : impl_->model.vocabulary().token(id);
    if (!token.empty()) tokens.emplace_back(token);
  }
  if (impl_->decoder) impl_->decoder->decode_tokens(tokens);
  std::string text;
  for (const std::string& token : tokens) {
    if (!impl_->decoder && !text.empty()) text += ' ';  // as `tokenizers` without a decoder
    text += token;
  }
  return text;
}

std::optional<int64_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const AddedToken* added_token = impl_->added_tokens.find(token)) return added_token->id;
  return impl_->model.vocabulary().find(token);
}

std::string_view Tokenizer::id_to_token(int64_t id) const {
  if (const AddedToken* added_token = impl_->added_tokens.find(id)) return added_token->content;
  return impl_->model.vocabulary().token(id);
}

bool Tokenizer::is_special(int64_t id) const {
  const AddedToken* added_token = impl_->added_tokens.find(id);
  return added_token != nullptr && added_token->special;
}

std::vector<std::string_view> Tokenizer::added_tokens() const {
  return impl_->added_tokens.contents();
}

int64_t Tokenizer::vocab_size() const {
  return std::max(impl_->model.vocabulary().max_id_plus_one(), impl_->added_tokens.max_id_plus_one());
}

}  // namespace vlmtrain::text
