// Sphinx takes a result's summary from the text at its anchor, and fails on an anchor that holds none, as those of
// the index do. Then the summary comes from the whole page, around the word.
(function () {
  "use strict";
  const atAnchor = Search.htmlToText;
  Search.htmlToText = function (page, anchor) {
    const text = atAnchor(page, anchor);
    return text.trim() ? text : atAnchor(page, "");
  };
})();
