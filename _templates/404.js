// The book's pages lie in its root and in one folder: an address below that folder tells the root.
var below = /^(.*\/)(?:chapters|_static|_sources|_images|_downloads)\//.exec(location.pathname);
if (below) document.querySelectorAll("a").forEach(function (link) {
  link.setAttribute("href", below[1] + link.getAttribute("href"));
});
