// Runs the built `gpumem` in a folder like an installation's; of this process's environment it gets only PATH.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace gpumem::cli {

struct outcome {
  int exit_status = -1;
  std::string out;
  std::string err;
};

class Program : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  /// `arguments` are for the shell; `environment` is put in front of the program.
  outcome run(const std::string& arguments, const std::string& environment = "");
  /// One line on stderr that holds `reason`, nothing on stdout, and this status.
  void expect_refused(const std::string& arguments, int exit_status, const std::string& reason,
                      const std::string& environment = "");
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  /// Put in front of the program, runs it as another user than this test and those of its processes. Empty if this test
  /// is not root's; process 1 then belongs to another user.
  std::string as_another_user() const;
  void write(const std::string& name, const std::string& text, unsigned mode = 0644) const;

  /// Four cards with UUIDs (GPU-<0 to 3>-...) that only this test uses, over the double of NVML; no driver.
  std::string four_cards;
  std::string uuid(int card) const { return "GPU-" + std::to_string(card) + "-" + unique_; }
  std::string folder_;

 private:
  std::string unique_;
};

std::string content_of(const std::string& file);

}  // namespace gpumem::cli
