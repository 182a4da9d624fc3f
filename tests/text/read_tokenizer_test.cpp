#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/captured_log.h"
#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::text {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json make_token(const std::string& content) {
  return {{"content", content}, {"special", true}, {"normalized", false}, {"lstrip", false}, {"rstrip", false}};
}

/// A preset's tokenizer with other files in its folder. The expected ids come from AutoTokenizer of
/// transformers 5.24.0 with the same files.
class ReadTokenizer : public io::TemporaryFolderTest {
 protected:
  void load_preset(const std::string& preset) {
    for (const auto& entry : std::filesystem::directory_iterator(folder())) std::filesystem::remove(entry.path());
    const auto source = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/models" / preset;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) put(name, io::read_file(source / name));
  }
  template <class Edit>
  void edit_json(const std::string& name, const Edit& apply_edit) {
    auto file = json::parse(read_contents(folder() / name));
    apply_edit(file);
    put(name, file.dump());
  }
  void set_config(const json& keys) {
    edit_json("tokenizer_config.json", [&keys](json& file) { file.update(keys); });
  }
  std::vector<int64_t> encode(const std::string& text = "a <ref> b") const {
    return read_tokenizer(folder()).encode(text).ids;
  }
  std::string get_error() const {
    return get_error_message([this] { read_tokenizer(folder()); });
  }
  std::string capture_log() const {
    const CapturedLog captured;
    read_tokenizer(folder());
    return captured.text();
  }
};

TEST_F(ReadTokenizer, AddsTokensMissingInTokenizerJson) {
  struct Family {
    const char* preset;
    int64_t next_id;
    std::vector<int64_t> neighbor_ids;
  };
  for (const auto& [preset, next_id, neighbor_ids] :
       {Family{"qwen2.5-vl-tiny", 607, {65, 221, 261}}, Family{"llava-tiny", 601, {67, 223, 262}}}) {
    const auto expect_next_id = [&, next_id = next_id, neighbor_ids = neighbor_ids](const char* source_name) {
      EXPECT_THAT(encode(), ElementsAre(neighbor_ids[0], neighbor_ids[1], next_id, neighbor_ids[2])) << source_name;
      load_preset(preset);
    };
    load_preset(preset);
    set_config({{"added_tokens_decoder", {{std::to_string(next_id), make_token("<ref>")}}}});
    expect_next_id("added_tokens_decoder");
    put("added_tokens.json", json{{"<ref>", next_id}}.dump());
    expect_next_id("added_tokens.json");
    set_config({{"extra_special_tokens", {"<ref>"}}});
    expect_next_id("extra_special_tokens");
    set_config({{"extra_special_tokens", {{"ref", "<ref>"}}}});
    expect_next_id("extra_special_tokens by name");
    set_config({{"additional_special_tokens", {"<ref>"}}});
    expect_next_id("additional_special_tokens");
    set_config({{"ref_token", "<ref>"}});
    expect_next_id("a name of the model's own");
    set_config({{"mask_token", "<ref>"}});
    expect_next_id("mask_token");
    put("special_tokens_map.json", json{{"mask_token", make_token("<ref>")}}.dump());
    expect_next_id("special_tokens_map.json");
    edit_json("tokenizer_config.json", [](json& file) { file.erase("additional_special_tokens"); });
    put("special_tokens_map.json", json{{"additional_special_tokens", {"<ref>"}}}.dump());
    expect_next_id("additional_special_tokens of special_tokens_map.json");
  }
}

TEST_F(ReadTokenizer, TokenIdsFollowTransformersOrder) {
  load_preset("qwen2.5-vl-tiny");
  set_config({{"added_tokens_decoder", {{"608", make_token("<q2>")}, {"607", make_token("<q1>")}}},
              {"mask_token", "<m>"},
              {"extra_special_tokens", {"<e>"}},
              {"ref_token", "<ref>"}});
  EXPECT_THAT(encode("<q1><q2><m><ref><e>"), ElementsAre(607, 608, 609, 610, 611));
  load_preset("qwen2.5-vl-tiny");
  put("added_tokens.json", R"({"<ref2>": 608, "<ref>": 607})");
  EXPECT_THAT(encode("<ref><ref2>"), ElementsAre(607, 608));
  load_preset("qwen2.5-vl-tiny");
  set_config({{"extra_special_tokens", {"<ref>", "<ref2>"}}});
  EXPECT_THAT(encode("<ref2><ref>"), ElementsAre(608, 607));
}

TEST_F(ReadTokenizer, DecoderPropertiesWin) {
  load_preset("qwen2.5-vl-tiny");
  json stripping_token = make_token("<ref>");
  stripping_token["lstrip"] = true;
  set_config({{"added_tokens_decoder", {{"607", stripping_token}}}});
  EXPECT_THAT(encode(), ElementsAre(65, 607, 261));
  edit_json("tokenizer.json", [](json& file) {
    json added_token = make_token("<ref>");
    added_token["id"] = 607;
    file["added_tokens"].push_back(added_token);
  });
  EXPECT_THAT(encode(), ElementsAre(65, 607, 261));
  set_config({{"added_tokens_decoder", nullptr}});
  put("special_tokens_map.json", json{{"mask_token", stripping_token}}.dump());
  EXPECT_THAT(encode(), ElementsAre(65, 221, 607, 261));
}

TEST_F(ReadTokenizer, WarnsAboutIgnoredFiles) {
  load_preset("qwen2.5-vl-tiny");
  set_config({{"added_tokens_decoder", {{"607", make_token("<other>")}}}});
  put("added_tokens.json", R"({"<ref>": 608})");
  EXPECT_THAT(capture_log(),
              AllOf(HasSubstr("added_tokens.json"), HasSubstr("<ref>"), HasSubstr("added_tokens_decoder")));
  EXPECT_THAT(encode("<other>"), ElementsAre(607));
  EXPECT_EQ(encode().size(), 7);
  put("added_tokens.json", "{}");
  put("special_tokens_map.json", R"({"mask_token": "<mask>"})");
  EXPECT_THAT(capture_log(), AllOf(HasSubstr("special_tokens_map.json: mask_token"), HasSubstr("<mask>")));
  load_preset("qwen2.5-vl-tiny");
  set_config({{"additional_special_tokens", {"<ref>"}}, {"extra_special_tokens", {"<ref2>"}}});
  EXPECT_THAT(capture_log(), AllOf(HasSubstr("additional_special_tokens"), HasSubstr("<ref>")));
  EXPECT_THAT(encode("<ref2>"), ElementsAre(607));
}

TEST_F(ReadTokenizer, RejectsIdsThatDifferFromTransformers) {
  load_preset("qwen2.5-vl-tiny");
  set_config({{"added_tokens_decoder", {{"700", make_token("<ref>")}}}});
  EXPECT_THAT(get_error(),
              AllOf(HasSubstr("added_tokens_decoder"), HasSubstr("\"<ref>\" the id 700"), HasSubstr("607")));
  load_preset("llava-tiny");
  put("added_tokens.json", R"({"<ref>": 5})");
  EXPECT_THAT(get_error(), AllOf(HasSubstr("added_tokens.json"), HasSubstr("\"<ref>\" the id 5"), HasSubstr("601")));
  load_preset("llava-tiny");
  set_config({{"added_tokens_decoder", {{"x", make_token("<ref>")}}}});
  EXPECT_THAT(get_error(), AllOf(HasSubstr("added_tokens_decoder"), HasSubstr("\"x\"")));
}

TEST_F(ReadTokenizer, RejectsGapsInAddedTokenIds) {
  const auto find_missing_token_error = [this](const std::string& preset, const std::string& content) {
    load_preset(preset);
    edit_json("tokenizer.json", [&](json& file) {
      auto& added = file["added_tokens"];
      const auto entry =
          std::ranges::find_if(added, [&](const json& added_token) { return added_token["content"] == content; });
      ASSERT_NE(entry, added.end());
      added.erase(entry);
    });
    return get_error();
  };
  EXPECT_THAT(find_missing_token_error("qwen2.5-vl-tiny", "<|vision_pad|>"),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("\"<|image_pad|>\" the id 605"), HasSubstr("assigns 604")));
  EXPECT_THAT(find_missing_token_error("gemma-3-tiny", "<end_of_turn>"),
              HasSubstr("a reserved token for each missing id"));
  EXPECT_THAT(find_missing_token_error("internvl3-tiny", "<img>"), HasSubstr("a reserved token for each missing id"));
}

TEST_F(ReadTokenizer, UnsupportedSettingsAreReported) {
  load_preset("qwen2.5-vl-tiny");
  set_config({{"split_special_tokens", true}});
  EXPECT_THAT(get_error(), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("split_special_tokens")));
  load_preset("qwen2.5-vl-tiny");
  set_config({{"add_prefix_space", true}});
  EXPECT_THAT(capture_log(), HasSubstr("add_prefix_space is true"));
  set_config({{"add_prefix_space", false}, {"fix_mistral_regex", true}, {"pre_merge", "x"}});
  EXPECT_THAT(capture_log(), HasSubstr("fix_mistral_regex, pre_merge are ignored"));
  load_preset("qwen2.5-vl-tiny");
  set_config({{"auto_map", {{"AutoTokenizer", {"a.B", nullptr}}}}});
  EXPECT_THAT(capture_log(), HasSubstr("auto_map"));
}

TEST_F(ReadTokenizer, WarnsAboutAnIncompleteDecoder) {
  load_preset("qwen2.5-vl-tiny");
  edit_json("tokenizer_config.json", [](json& file) { file.erase("additional_special_tokens"); });
  set_config({{"tokenizer_class", "Qwen2Tokenizer"}, {"added_tokens_decoder", {{"601", make_token("<|im_end|>")}}}});
  EXPECT_THAT(capture_log(), AllOf(HasSubstr("added_tokens_decoder lacks 6 tokens"), HasSubstr("Qwen2Tokenizer")));
}

TEST_F(ReadTokenizer, OrdinaryFilesGiveNoWarning) {
  for (const char* const preset : {"qwen2.5-vl-tiny", "llava-tiny", "gemma-3-tiny", "internvl3-tiny", "smolvlm-tiny",
                                   "prs-med-tiny", "brain-llava-tiny", "nanovlm-tiny", "qwen3-vl-tiny"}) {
    load_preset(preset);
    set_config({{"add_bos_token", true},
                {"legacy", false},
                {"clean_up_tokenization_spaces", true},
                {"add_prefix_space", nullptr},
                {"tokenizer_class", "LlamaTokenizerFast"}});
    EXPECT_THAT(capture_log(), IsEmpty()) << preset;
  }
}

}  // namespace
}  // namespace vlmtrain::text
