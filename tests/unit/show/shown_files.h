/// What a `tutti show` command leaves: its picture, its figures and what it prints.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tutti/base/file.h"
#include "tutti/base/json.h"

#include "tests/unit/wrong_words/refused.h"

namespace tutti::test {

struct ShownFiles {
  explicit ShownFiles(const std::string& words)
      : result(run_here(words_of("show " + words) + Words{"--svg", folder / "drawing.svg", "--json",
                                                          folder / "figures.json"})) {
    EXPECT_EQ(result.exit_code, 0) << words << "\n" << result.err;
    if (result.exit_code == 0) figures = parse_json(read_file(folder / "figures.json"));
  }

  /// The picture is XML, 360 wide, and has no script and no link.
  void expect_xml() const {
    const auto parsed =
        run_command({"python3", "-c",
                     "import sys, xml.etree.ElementTree as E\n"
                     "root = E.parse(sys.argv[1]).getroot()\n"
                     "assert root.get('viewBox').startswith('0 0 360 '), root.get('viewBox')\n"
                     "names = {e.tag.split('}')[1] for e in root.iter()}\n"
                     "assert not names & {'script', 'a', 'image', 'use'}, names\n",
                     folder / "drawing.svg"});
    EXPECT_EQ(parsed.exit_code, 0) << parsed.err;
  }

  TempFolder folder;
  CommandResult result;
  Json figures;
};

}  // namespace tutti::test

namespace tutti {
using test::run_here;
using test::ShownFiles;
}  // namespace tutti
