#include "vlmtrain/memory/libtorch.h"

#include <gtest/gtest.h>

#include "io/temporary_folder.h"

namespace vlmtrain::memory {
namespace {

TEST(LibTorchTest, IsTheOneThatThisProcessRunsOn) {
  const LibTorch found = libtorch();
  EXPECT_EQ(found.loaded, found.compiled_for) << "what the library says of itself";
  EXPECT_TRUE(found.is_the_one_compiled_for());
  EXPECT_EQ(found.cpu_library.filename(), "libtorch_cpu.so");
  EXPECT_TRUE(std::filesystem::exists(found.cpu_library));
  EXPECT_EQ(found.cpu_library.parent_path(), found.core_library.parent_path());
  EXPECT_TRUE(std::filesystem::exists(found.cuda_library));
}

TEST(LibTorchTest, VersionIsReadFromItsConfiguration) {
  EXPECT_EQ(version_in("Build settings: BLAS_INFO=mkl, TORCH_VERSION=2.11.0, USE_CUDA=ON, "), "2.11.0");
  EXPECT_EQ(version_in("TORCH_VERSION=2.12.0+cu130"), "2.12.0+cu130");
  EXPECT_EQ(version_in("nothing"), "");
}

TEST(LibTorchTest, OfAnotherVersionIsNotTheOneCompiledFor) {
  EXPECT_FALSE((LibTorch{.compiled_for = "2.11.0", .loaded = "2.12.0"}).is_the_one_compiled_for());
  EXPECT_TRUE((LibTorch{.compiled_for = "2.11.0"}).is_the_one_compiled_for()) << "it does not say";
}

class FoundByTest : public io::TemporaryFolderTest {
 protected:
  FoundBy by(const char* library_path, const char* preload, const std::vector<std::filesystem::path>& searched) const {
    return found_by(folder(), library_path, preload, searched);
  }
};

TEST_F(FoundByTest, TellsWhichPathItIs) {
  const std::string here = folder().string();
  const std::string path = "/nowhere:" + here;
  EXPECT_EQ(by(nullptr, nullptr, {folder()}), FoundBy::kProgram);
  EXPECT_EQ(by(path.c_str(), nullptr, {"/nowhere", folder()}), FoundBy::kLibraryPath);
  EXPECT_EQ(by(path.c_str(), nullptr, {folder(), "/nowhere", folder()}), FoundBy::kProgram) << "which comes first";
  EXPECT_EQ(by(nullptr, nullptr, {"/nowhere"}), FoundBy::kSystem);
  EXPECT_EQ(by(nullptr, (here + "/libtorch_cpu.so").c_str(), {folder()}), FoundBy::kPreload);
  EXPECT_EQ(by(nullptr, (here + "/another.so").c_str(), {folder()}), FoundBy::kProgram);
}

}  // namespace
}  // namespace vlmtrain::memory
