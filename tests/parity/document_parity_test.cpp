#include <gtest/gtest.h>

#include <map>

#include "parity/case.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::parity {
namespace {

std::vector<int64_t> collect_labels(const data::Sample& sample) {
  std::vector<int64_t> labels;
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    if (sample.label_mask[i] != 0) labels.push_back(sample.token_ids[i]);
  }
  return labels;
}

/// data/documents.json: ids of transformers' processors for texts and for texts with images.
TEST(DocumentParity, IdsAndLabelsMatchTransformers) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "documents.json";
  std::map<std::string, size_t> num_documents;
  for (const auto& document : io::read_json(source_folder() / "tests/parity/data/documents.json")) {
    const Case origin(document.at("case").get<std::string>());
    io::write_file(file, "[" + document.at("record").dump() + "]");
    const auto records = io::read_dataset(file, origin.images());
    ASSERT_EQ(records.size(), 1U);
    const auto sample = data::make_sample(*origin.load_processor(), records.front(), 0);
    const std::string name = document.at("case").get<std::string>() + ": " + document.at("record").dump();
    EXPECT_EQ(sample.token_ids, document.at("ids").get<std::vector<int64_t>>()) << name;
    EXPECT_EQ(collect_labels(sample), document.at("label_ids").get<std::vector<int64_t>>()) << name;
    ++num_documents[document.at("case").get<std::string>()];
  }
  EXPECT_EQ(num_documents.size(), 9U);
  EXPECT_EQ(num_documents.at("qwen3_vl_mixed"), 9U);
}

}  // namespace
}  // namespace vlmtrain::parity
