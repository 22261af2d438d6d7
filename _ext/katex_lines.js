// Render TeX with KaTeX: one JSON request a line on stdin, one JSON answer a line on stdout.
// The process ends when stdin closes, so it cannot outlive the build that started it.
const katex = require(process.argv[2]);

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    const { tex, options } = JSON.parse(line);
    let answer;
    try {
      answer = { html: katex.renderToString(tex, options) };
    } catch (error) {
      answer = { error: error.message };
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
  });
